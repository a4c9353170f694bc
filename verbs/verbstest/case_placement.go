package verbstest

import (
	"encoding/binary"
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// flushable is everything, and FLUSH.
const flushable = everything | verbs.AccessFlushGlobal

func flush(id uint64, at verbs.RemoteAddr, n uint32, p verbs.FlushPlacement) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: at, Flush: verbs.Flush{Length: n, Placement: p}}
}

func atomicWrite(id uint64, at verbs.RemoteAddr, word verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{word}, Remote: at}
}

func flushOne(to verbs.RemoteAddr, n int, _ verbs.SGE) verbs.SendWR {
	return flush(0, to, uint32(n), verbs.FlushGlobal)
}

func atomicWriteOne(to verbs.RemoteAddr, _ int, l verbs.SGE) verbs.SendWR {
	l.Length = 8
	return atomicWrite(0, to, l)
}

const placementRounds = 300

// placementCases are about the memory placement extensions of annex A19.
var placementCases = []Case{
	{
		Name: "rc/atomic write", Needs: AtomicWrites,
		A: func(s *Side) {
			e := s.connect(setup{})
			mr, at := e.mr(16), Exchange(s, verbs.RemoteAddr{})
			binary.NativeEndian.PutUint64(mr.Bytes()[8:], 0x1122334455667788)
			e.send(atomicWrite(1, at.Add(8), mr.SGE(8, 8)))
			e.sent(1, verbs.WCAtomicWrite)
			e.send(verbs.SendWR{ID: 2, Op: verbs.OpAtomicWrite, Flags: verbs.SendSignaled | verbs.SendInline, Remote: at.Add(16), InlineData: mr.Bytes()[8:]})
			e.sent(2, verbs.WCAtomicWrite)
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(32)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			for i, w := range []uint64{0, 0x1122334455667788, 0x1122334455667788, 0} {
				want(s, "a word", mr.Load64(8*i), w)
			}
		},
	},
	// A log as annex A19 has it in mind: a record is written and flushed, and then an ATOMIC WRITE moves the end of the
	// log. Whoever sees the end sees the record.
	{
		Name: "rc/atomic write behind flush", Needs: AtomicWrites | FlushGlobal,
		A: func(s *Side) {
			e := s.connect(setup{})
			mr, at := e.mr(16), Exchange(s, verbs.RemoteAddr{})
			for i := range uint64(placementRounds) {
				binary.NativeEndian.PutUint64(mr.Bytes(), i+1)
				binary.NativeEndian.PutUint64(mr.Bytes()[8:], i+1)
				e.send(unsignaled(write(1, at.Add(int(16+8*i)), mr.SGE(0, 8))), unsignaled(flush(2, at.Add(int(16+8*i)), 8, verbs.FlushGlobal)),
					atomicWrite(3, at.Add(8), mr.SGE(8, 8)))
				e.sent(3, verbs.WCAtomicWrite)
			}
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{access: flushable})
			mr := s.allocMR(e.pd, 16+8*placementRounds, flushable)
			Exchange(s, mr.Remote(0))
			for seen := uint64(0); seen < placementRounds; {
				e.watch("the end of the log", func() bool { return mr.Load64(8) > seen })
				for end := mr.Load64(8); seen < end; seen++ {
					want(s, "a record before the end of the log", mr.Load64(int(16+8*seen)), seen+1)
				}
			}
			s.Barrier()
		},
	},
	{
		Name: "rc/flush", Needs: FlushGlobal,
		A: func(s *Side) {
			e := s.connect(setup{})
			src, at := e.filled(4096, 7), Exchange(s, verbs.RemoteAddr{})
			whole := flush(3, verbs.RemoteAddr{RKey: at.RKey}, 0, verbs.FlushGlobal)
			whole.Flush.Selectivity = verbs.FlushMR
			e.send(unsignaled(write(1, at, src.SGE(0, 4096))), flush(2, at.Add(100), 1000, verbs.FlushGlobal), whole)
			e.sent(2, verbs.WCFlush)
			e.sent(3, verbs.WCFlush)
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{access: flushable})
			mr := s.allocMR(e.pd, 4096, flushable)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			e.see()
			s.verify("the memory", mr.Bytes(), 7)
		},
	},
	// A message behind a FLUSH to storage comes after the data are in the file.
	{
		Name: "rc/flush to a file", Needs: FlushPersistent,
		A: func(s *Side) {
			e := s.connect(setup{})
			src, at := e.filled(8192, 9), Exchange(s, verbs.RemoteAddr{})
			e.send(unsignaled(write(1, at, src.SGE(0, 8192))), unsignaled(flush(2, at, 8192, verbs.FlushPersistent)), send(3))
			e.sent(3, verbs.WCSend)
			s.Barrier()
		},
		B: func(s *Side) {
			const access = flushable | verbs.AccessFlushPersistent
			e := s.connect(setup{access: access})
			f, err := os.CreateTemp("", "verbstest-")
			s.must(err)
			s.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
			s.must(f.Truncate(8192))
			mr, err := e.pd.RegFileMR(int(f.Fd()), 0, 8192, 0, access)
			s.need(FlushPersistent, err)
			s.closeLater(mr)
			e.recv(recv(1))
			Exchange(s, mr.Remote(0))
			e.received(1, 0)
			got, err := os.ReadFile(f.Name())
			s.must(err)
			s.verify("the file", got, 9)
			s.Barrier()
		},
	},
	refused("rc/error: flush of a region without access", FlushGlobal, setup{access: flushable}, everything, flushOne, verbs.WCRemAccessErr),
	refused("rc/error: flush by a QP without access", FlushGlobal, setup{}, flushable, flushOne, verbs.WCRemInvReqErr, verbs.WCRemAccessErr),
	refused("rc/error: flush beyond the region", FlushGlobal, setup{access: flushable}, flushable, func(to verbs.RemoteAddr, n int, l verbs.SGE) verbs.SendWR {
		return flushOne(to.Add(1), n, l)
	}, verbs.WCRemAccessErr),
	refused("rc/error: atomic write to a region without access", AtomicWrites, setup{}, everything&^verbs.AccessRemoteWrite, atomicWriteOne, verbs.WCRemAccessErr),
	refused("rc/error: atomic write by a QP without access", AtomicWrites, setup{access: everything &^ verbs.AccessRemoteWrite}, everything, atomicWriteOne, verbs.WCRemInvReqErr, verbs.WCRemAccessErr),
	{
		Name: "rc/error: placement that is none", Needs: FlushGlobal | AtomicWrites,
		A: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(16)
			to := mr.Remote(0)
			for _, wr := range []verbs.SendWR{
				flush(1, to, 8, 0), flush(1, to, 8, 4), flush(1, to, 1<<31+1, verbs.FlushGlobal),
				{Op: verbs.OpFlush, Remote: to, SGList: []verbs.SGE{mr.SGE(0, 8)}, Flush: verbs.Flush{Length: 8, Placement: verbs.FlushGlobal}},
				atomicWrite(1, to, mr.SGE(0, 4)), atomicWrite(1, to, mr.SGE(0, 16)), atomicWrite(1, to.Add(4), mr.SGE(0, 8)),
			} {
				if n, err := e.qp.PostSend([]verbs.SendWR{wr}); n != 0 || err == nil {
					s.Errorf("post of %+v: %d, %v; want an error", wr, n, err)
				}
			}
			s.Barrier()
		},
		B: func(s *Side) {
			s.connect(setup{})
			s.Barrier()
		},
	},
}
