package rnic

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// fragileSize is the size of memory that the program takes away from its middle on.
const fragileSize = 1 << 20

// fragile registers memory, of which vanish takes the second half.
func (e *end) fragile() (mr *verbs.MR, vanish func()) {
	e.t.Helper()
	b, err := unix.Mmap(-1, 0, fragileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	e.must(err)
	e.t.Cleanup(func() { _ = unix.Munmap(b) })
	mr, err = e.pd.RegMR(b, everything)
	e.must(err)
	return mr, func() { e.must(unix.Mprotect(b[fragileSize/2:], unix.PROT_NONE)) }
}

// TestMemoryFault: memory that the program has taken away since it was registered ends the connection, and not the
// program. The end that has the memory names the work request, or says so by an event. It makes no difference whether
// the kernel finds it or we do. Work requests that were posted before succeed.
func TestMemoryFault(t *testing.T) {
	const half = fragileSize / 2
	read := func(from *verbs.MR, off, n int, to verbs.SGE) verbs.SendWR {
		to.Length = uint32(n)
		return verbs.SendWR{ID: 2, Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{to}, Remote: from.Remote(off)}
	}
	type world struct{ mine, theirs, fragile *verbs.MR }
	tests := []struct {
		name   string
		theirs bool // the memory is the peer's
		wr     func(w world) []verbs.SendWR
		status verbs.WCStatus // of the last work request; WCSuccess stands for any failure
		recv   bool           // the peer's receive is of that memory
	}{
		{name: "SEND", wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{w.fragile.SGE(half, 8)}}}
		}, status: verbs.WCLocProtErr},
		{name: "long SEND", wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{ID: 2, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{w.fragile.SGE(0, fragileSize)}}}
		}, status: verbs.WCLocProtErr},
		{name: "READ", wr: func(w world) []verbs.SendWR { return []verbs.SendWR{read(w.theirs, 0, 8, w.fragile.SGE(half, 8))} }, status: verbs.WCLocProtErr},
		{name: "long READ", wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{read(w.theirs, 0, fragileSize, w.fragile.SGE(0, fragileSize))}
		}, status: verbs.WCLocProtErr},
		{name: "receive", theirs: true, recv: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{ID: 2, Op: verbs.OpSend, SGList: []verbs.SGE{w.mine.SGE(0, fragileSize)}}, read(w.theirs, 0, 8, w.mine.SGE(0, 8))}
		}},
		{name: "WRITE", theirs: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{w.mine.SGE(0, 8)}, Remote: w.fragile.Remote(half)}, read(w.theirs, 0, 8, w.mine.SGE(0, 8))}
		}},
		{name: "long WRITE", theirs: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{w.mine.SGE(0, fragileSize)}, Remote: w.fragile.Remote(0)}, read(w.theirs, 0, 8, w.mine.SGE(0, 8))}
		}},
		{name: "source of a READ", theirs: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{read(w.fragile, half, 8, w.mine.SGE(0, 8))}
		}, status: verbs.WCRemOpErr},
		{name: "source of a long READ", theirs: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{read(w.fragile, 0, fragileSize, w.mine.SGE(0, 8))}
		}},
		{name: "atomic", theirs: true, wr: func(w world) []verbs.SendWR {
			return []verbs.SendWR{{ID: 2, Op: verbs.OpAtomicFetchAdd, Flags: signaled, CompareAdd: 1, SGList: []verbs.SGE{w.mine.SGE(0, 8)}, Remote: w.fragile.Remote(half)}}
		}, status: verbs.WCRemOpErr},
	}
	for _, stream := range []string{"tcp", "tcp with CRCs", "wrapped"} {
		for _, tt := range tests {
			t.Run(fmt.Sprint(tt.name, ", ", stream), func(t *testing.T) {
				x, y := ends(t)
				a, b := tcpPair(t)
				if stream == "wrapped" {
					a, b = wrapped{a}, wrapped{b}
				}
				offer := deep
				offer.CRC = stream == "tcp with CRCs"
				tx, ty := agree(t, offer, deep, nil)
				owner := x
				if tt.theirs {
					owner = y
				}
				fragile, vanish := owner.fragile()
				w := world{x.mr(fragileSize), y.mr(fragileSize), fragile}
				to := w.theirs.SGE(0, fragileSize)
				if tt.recv {
					to = fragile.SGE(0, fragileSize)
				}
				vanish()
				y.recv(verbs.RecvWR{ID: 101, SGList: []verbs.SGE{to}}, verbs.RecvWR{ID: 102})
				x.attach(a, tx)
				y.attach(b, ty)
				x.send(append([]verbs.SendWR{{ID: 1, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{w.mine.SGE(0, 64)}, Remote: w.theirs.Remote(0)}}, tt.wr(w)...)...)
				if wc := x.done(); wc.ID != 1 {
					t.Errorf("completion %d is first, want that of the WRITE before", wc.ID)
				}
				wc := x.next()
				for wc.ID != 2 {
					wc = x.next()
				}
				if wc.Status == verbs.WCSuccess || tt.status != verbs.WCSuccess && wc.Status != tt.status {
					t.Errorf("the work request ends with %v (%v), want %v", wc.Status, wc.Cause, tt.status)
				}
				cause := wc.Cause
				switch {
				case tt.recv:
					got := y.next()
					if got.ID != 101 || got.Status != verbs.WCLocProtErr {
						t.Errorf("the peer's receive: %d %v, want %v", got.ID, got.Status, verbs.WCLocProtErr)
					}
					cause = got.Cause
				case tt.theirs:
					ev := y.event()
					if ev.Type != verbs.EventQPFatal {
						t.Errorf("the peer has the event %v, want %v", ev.Type, verbs.EventQPFatal)
					}
					cause = ev.Cause
				}
				if !errors.Is(cause, mem.ErrFault) {
					t.Errorf("the cause is %v, want one of the kind mem.ErrFault", cause)
				}
				owner.must(fragile.Close())
			})
		}
	}
}
