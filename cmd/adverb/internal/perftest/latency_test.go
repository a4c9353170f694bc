package perftest

import (
	"context"
	"runtime"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The ends of write_lat count their writes in a byte that the other watches. The server writes first,
// and the client only after it has seen that.
func TestWriteLatBegins(t *testing.T) {
	net := rdmatest.New(t)
	x, y := rdmatest.Connect(t, net.Device(), net.Device())
	mine := x.MR(64)
	// The race detector would not see that Load64 orders the accesses to memory of Go's.
	theirs, err := y.PD.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	for _, server := range []bool{true, false} {
		inv, _, _ := tooltest.Invocation(t, WriteLat, "-n 5")
		k := kindOf(WriteLat)
		p, _, ok := parse(inv, k)
		if !ok {
			t.Fatal("the flags are refused")
		}
		p.sender = !server
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		r := &tester{params: p, inv: inv, kind: k, ctx: ctx, cq: x.CQ, cycle: 4096, line: 64, lanes: []lane{{
			qp: x.QP, mr: mine, recvOff: 32, remote: dest{vaddr: theirs.Addr() + 32, rkey: theirs.RKey()}}}}
		l := r.newLatency(2)
		done := make(chan error, 1)
		if server {
			go func() { done <- l.bounceWrites(2) }()
			for theirs.Load64(32) == 0 && ctx.Err() == nil { // until it has written
				runtime.Gosched()
			}
			cancel()
		} else {
			// A run that has ended before it began waits for nothing, and has written nothing.
			cancel()
			done <- l.bounceWrites(2)
		}
		if err := <-done; err == nil || server != (l.sent == 1) {
			t.Errorf("server %v: got %d writes and %v, want the server alone to write before the other end has", server, l.sent, err)
		}
	}
}
