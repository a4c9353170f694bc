package rdmacm_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimewaitExitAfterDrain: sends that are under way delay the end of a connection that the peer has ended.
// A time-wait that is over before is reported all the same, and behind the end.
func TestTimewaitExitAfterDrain(t *testing.T) {
	in(t, func(t *testing.T, p pair) {
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.listener(rdmacm.PortSpaceTCP, addr(t, p.b, false, 0))
		x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
		a.ok(x.SetACKTimeout(8)) // 1 ms, and so long is the time-wait
		y := establish(a, b, x)
		_, err := y.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: []byte("no receive is posted")}})
		b.ok(err)
		a.ok(x.Disconnect())
		b.next(rdmacm.EventDisconnected)
		b.next(rdmacm.EventTimewaitExit)
	})
}
