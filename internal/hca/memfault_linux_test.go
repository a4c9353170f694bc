//go:build !adverb_portable

package hca

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// fragile registers a page that vanish takes away.
func (e *end) fragile() (mr *verbs.MR, vanish func()) {
	e.t.Helper()
	b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	e.must(err)
	e.t.Cleanup(func() { _ = unix.Munmap(b) })
	mr, err = e.pd.RegMR(b, everything)
	e.must(err)
	return mr, func() { e.must(unix.Mprotect(b, unix.PROT_NONE)) }
}

// TestDirectMemoryFault: a work request whose own memory has gone is not carried out directly, and fails. An atomic is
// carried out once all the same, since its result is what cannot be stored. The owner's region is not held.
func TestDirectMemoryFault(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAdd} {
		t.Run(op.String(), func(t *testing.T) {
			p, _, theirs := directPair(t, options{})
			mine, vanish := p.x.fragile()
			wr := writeOf(mine, theirs, 0, 8)
			wr.Op = op
			if op == verbs.OpAtomicFetchAdd {
				wr.CompareAdd = 5
			}
			theirs.Store64(0, 40)
			vanish()
			before := p.x.impl().traffic.direct
			p.x.send(wr)
			if wc := p.next(p.x); wc.Status != verbs.WCLocProtErr || !errors.Is(wc.Cause, mem.ErrFault) {
				t.Errorf("the completion is %v (%v), want %v", wc.Status, wc.Cause, verbs.WCLocProtErr)
			}
			atomic := op == verbs.OpAtomicFetchAdd
			want := uint64(40)
			if atomic {
				want = 45
			}
			if got := theirs.Load64(0); got != want {
				t.Errorf("the peer's word is %d, want %d", got, want)
			}
			if got := p.x.impl().traffic.direct - before; atomic != (got == 1) {
				t.Errorf("%d were carried out directly, want one only if it is an atomic", got)
			}
			if s := p.x.qp.State(); s != verbs.QPStateErr {
				t.Errorf("the QP is in %v, want ERR", s)
			}
			p.x.must(mine.Close())
			p.y.must(theirs.Close())
		})
	}
}

// TestMemoryFaultUDP: over a network the devices live on after a fault of either end's memory. Another QP works.
func TestMemoryFaultUDP(t *testing.T) {
	for _, theirs := range []bool{false, true} {
		t.Run(map[bool]string{false: "own", true: "target"}[theirs], func(t *testing.T) {
			x, y := pair(t, "udp", options{})
			owner, want := x, verbs.WCLocProtErr
			if theirs {
				owner, want = y, verbs.WCRemOpErr
			}
			fragile, vanish := owner.fragile()
			vanish()
			from, to := x.mr(64), y.mr(64)
			if theirs {
				to = fragile
			} else {
				from = fragile
			}
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{from.SGE(0, 64)}, Remote: to.Remote(0)})
			if wc := x.next(); wc.Status != want {
				t.Errorf("the completion is %v (%v), want %v", wc.Status, wc.Cause, want)
			}
			if theirs {
				if ev := event(t, y.dev); ev.Type != verbs.EventQPFatal || !errors.Is(ev.Cause, mem.ErrFault) {
					t.Errorf("the peer's event is %v (%v), want %v", ev.Type, ev.Cause, verbs.EventQPFatal)
				}
			}
			owner.must(fragile.Close())
			x2, y2 := connect(t, x.dev, y.dev, options{})
			x2.transfer(x2.mr(64), y2.mr(64))
		})
	}
}
