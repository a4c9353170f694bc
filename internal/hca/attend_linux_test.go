//go:build !adverb_portable

package hca

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/verbs"
)

// sink is a program that is told of completions, and polls nothing.
type sink struct{ done []verbs.WC }

func (s *sink) Complete(wc *verbs.WC, _ uint64) bool {
	s.done = append(s.done, *wc)
	return true
}

func (s *sink) Event() {}

// TestAttended: a work request between two devices of a process, posted by a thread that attends, is over when the thread goes on.
// Both ends have their completions: no goroutine, and no poll, has any part in it.
func TestAttended(t *testing.T) {
	p := newLanePair(t, options{driven: true})
	for to, o := range p.outs {
		o.Beside(p.inboxes[to])
	}
	var x, y sink
	p.x.cq.Provider().(verbs.ProviderCQSink).SetSink(&x)
	p.y.cq.Provider().(verbs.ProviderCQSink).SetSink(&y)
	const size = 300_000 // several turns, and more than a lane takes at once
	mine, theirs := p.x.mr(size), p.y.mr(size)
	for i := range mine.Bytes() {
		mine.Bytes()[i] = byte(i * 7)
	}
	for _, n := range []int{8, size} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
			x.done, y.done = nil, nil
			clear(theirs.Bytes())
			wr := verbs.SendWR{ID: 1, Op: op, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, n)}}
			received := 0
			if op == verbs.OpSend {
				received = 1
				p.y.recv(verbs.RecvWR{ID: 2, SGList: []verbs.SGE{theirs.SGE(0, size)}})
			} else {
				wr.Remote = theirs.Remote(0)
			}
			shm.Attend(func() { p.x.send(wr) })
			if len(x.done) != 1 || x.done[0].Status != verbs.WCSuccess || len(y.done) != received {
				t.Fatalf("%v of %d bytes: completions %v and %v, want one at the requester, and %d at the responder", op, n, x.done, y.done, received)
			}
			if !bytes.Equal(mine.Bytes()[:n], theirs.Bytes()[:n]) {
				t.Errorf("%v of %d bytes: the bytes are other ones", op, n)
			}
			if op == verbs.OpRDMARead { // which has brought zeros
				for i := range mine.Bytes() {
					mine.Bytes()[i] = byte(i * 7)
				}
			}
		}
	}
}
