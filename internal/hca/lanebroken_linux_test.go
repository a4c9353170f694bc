//go:build !adverb_portable

package hca

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLaneBreaksInOrder: what lies in a lane that was given up is taken before what followed it by the network, also by a
// receiver that looks at the network first. Nothing but its place tells that a UC message is older.
func TestLaneBreaksInOrder(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		t.Run(typ.String(), func(t *testing.T) {
			p := newLanePair(t, options{typ: typ})
			p.shares = true
			other, theirs := connect(t, p.x.dev, p.y.dev, options{typ: typ})
			p.net.SetFaults(sim.Faults{})
			const messages = 20
			for i := range uint64(messages + 1) {
				p.y.recv(verbs.RecvWR{ID: i})
			}
			theirs.recv(verbs.RecvWR{})
			eng := p.y.impl().out.eng
			eng.rx.Lock()
			for i := range uint32(messages) {
				p.x.send(verbs.SendWR{Op: verbs.OpSendWithImm, Imm: i})
			}
			other.send(verbs.SendWR{Op: verbs.OpSend}) // so that the lane ends with another QP's
			for _, o := range p.outs {
				o.Hangup()
			}
			p.x.send(verbs.SendWR{Op: verbs.OpSendWithImm, Imm: messages})
			n := 0
			for limit := time.Now().Add(patience); n == 0 && time.Now().Before(limit); {
				var err error
				n, _, err = eng.receive(eng.dev.now())
				p.y.must(err)
			}
			eng.rx.Unlock()
			if n == 0 {
				t.Fatal("nothing comes by the network")
			}
			for i := range uint32(messages + 1) {
				if wc := p.want(p.y); wc.Imm != i {
					t.Fatalf("message %d has come as the %dth, want all in their order", wc.Imm, i)
				}
			}
			p.want(theirs)
		})
	}
}
