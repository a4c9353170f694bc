package verbstest

import (
	"encoding/binary"

	"github.com/adverb-rdma/adverb/verbs"
)

func fetchAdd(id uint64, at verbs.RemoteAddr, add uint64, old verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{old}, Remote: at, CompareAdd: add}
}

func cmpSwap(id uint64, at verbs.RemoteAddr, compare, swap uint64, old verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicCmpSwap, Flags: verbs.SendSignaled, SGList: []verbs.SGE{old}, Remote: at, CompareAdd: compare, Swap: swap}
}

const (
	atomicRounds = 500     // of each QP
	ownAdditions = 100_000 // of the program, at the same time
)

var atomicCases = []Case{
	{
		Name: "rc/atomics", Needs: Atomics,
		A: func(s *Side) {
			e := s.connect(setup{})
			mr, at := e.mr(16), Exchange(s, verbs.RemoteAddr{}).Add(8)
			do := func(wr verbs.SendWR, op verbs.WCOpcode, old uint64) {
				e.send(wr)
				want(s, "ByteLen", e.sent(wr.ID, op).ByteLen, 8)
				want(s, "old value", binary.NativeEndian.Uint64(mr.Bytes()[8:]), old)
			}
			do(cmpSwap(1, at, 10, 1<<63, mr.SGE(8, 8)), verbs.WCCompSwap, 10)
			do(cmpSwap(2, at, 10, 5, mr.SGE(8, 8)), verbs.WCCompSwap, 1<<63)
			do(fetchAdd(3, at, 1<<63+7, mr.SGE(8, 8)), verbs.WCFetchAdd, 1<<63)
			do(fetchAdd(4, at, 1<<64-1, mr.SGE(8, 8)), verbs.WCFetchAdd, 7)
			want(s, "the memory before", mr.Load64(0), 0)
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(24)
			binary.NativeEndian.PutUint64(mr.Bytes()[8:], 10)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			want(s, "the word", mr.Load64(8), 6)
			want(s, "the word before", mr.Load64(0), 0)
			want(s, "the word behind", mr.Load64(16), 0)
		},
	},
	// Two QPs add to one word. So does the program itself, if the device promises ATOMIC_GLOB.
	{
		Name: "rc/atomics add up", Needs: Atomics,
		A: func(s *Side) {
			var ends [2]*end
			for i := range ends {
				ends[i] = s.connect(setup{})
			}
			at := Exchange(s, verbs.RemoteAddr{})
			for _, e := range ends {
				mr := e.mr(8)
				for id := range uint64(atomicRounds) {
					if id >= 64 {
						e.sent(id-64, verbs.WCFetchAdd)
					}
					e.send(fetchAdd(id, at, 3, mr.SGE(0, 8)))
				}
			}
			for _, e := range ends {
				for id := range uint64(64) {
					e.sent(atomicRounds-64+id, verbs.WCFetchAdd)
				}
			}
			s.Barrier()
		},
		B: func(s *Side) {
			pd := s.allocPD()
			e := s.connect(setup{pd: pd})
			s.connect(setup{pd: pd})
			mr, err := e.pd.RegMR(make([]byte, 8), everything) // memory that the race detector watches
			s.must(err)
			s.closeLater(mr)
			a := s.attr()
			Exchange(s, mr.Remote(0))
			sum := uint64(2 * atomicRounds * 3)
			if a.AtomicCap == verbs.AtomicGlob {
				e.watch("the first addition", func() bool { return mr.Load64(0) != 0 })
				for range ownAdditions {
					mr.Add64(0, 5)
				}
				sum += 5 * ownAdditions
			}
			s.Barrier()
			want(s, "sum", mr.Load64(0), sum)
		},
	},
	// A lock that is taken by compare-and-swap has one owner at a time.
	{
		Name: "rc/compare and swap as a lock", Needs: Atomics,
		A: func(s *Side) { lockers(s, false) },
		B: func(s *Side) { lockers(s, true) },
	},
}

// lockers has both sides count in a word of B's, by READ and WRITE. Another word is the lock that guards
// it.
func lockers(s *Side, owner bool) {
	const rounds = 50
	e := s.connect(setup{})
	self, _ := s.pair(e.pd) // through it B reaches its own memory
	var at verbs.RemoteAddr
	if owner {
		at = e.mr(16).Remote(0)
	}
	theirs := Exchange(s, at)
	q := self
	if !owner {
		at, q = theirs, e
	}
	mr := e.mr(16)
	one := func(wr verbs.SendWR, op verbs.WCOpcode) uint64 {
		q.send(wr)
		q.sent(wr.ID, op)
		return binary.NativeEndian.Uint64(mr.Bytes())
	}
	for range rounds {
		s.spin("the lock", func() bool { return one(cmpSwap(1, at, 0, 1, mr.SGE(0, 8)), verbs.WCCompSwap) == 0 })
		n := one(read(2, at.Add(8), mr.SGE(0, 8)), verbs.WCRDMARead)
		binary.NativeEndian.PutUint64(mr.Bytes(), n+1)
		one(write(3, at.Add(8), mr.SGE(0, 8)), verbs.WCRDMAWrite)
		if held := one(cmpSwap(4, at, 1, 0, mr.SGE(0, 8)), verbs.WCCompSwap); held != 1 {
			s.Fatalf("the lock was %d while it was held, want 1", held)
		}
	}
	s.Barrier()
	if n := one(read(5, at.Add(8), mr.SGE(0, 8)), verbs.WCRDMARead); n != 2*rounds {
		s.Errorf("counted to %d, want %d", n, 2*rounds)
	}
}
