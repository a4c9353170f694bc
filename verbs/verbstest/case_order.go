package verbstest

import (
	"encoding/binary"

	"github.com/adverb-rdma/adverb/verbs"
)

var orderCases = []Case{
	// Unsignaled work requests make no completion. The completion of one that is signaled frees the places
	// of all before it.
	{
		Name: "rc/unsignaled",
		A: func(s *Side) {
			e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1}})
			src, to := e.filled(64, 1), Exchange(s, verbs.RemoteAddr{})
			for id := uint64(1); id <= 64; id++ {
				wr := write(id, to.Add(int(id-1)*8), src.SGE(int(id-1)%8*8, 8))
				if id%4 != 0 {
					wr = unsignaled(wr)
				}
				e.send(wr)
				if id%4 == 0 {
					e.sent(id, verbs.WCRDMAWrite)
				}
			}
			s.empty(e.scq)
			e.placed()
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(512)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			e.see()
			for i := range 8 {
				s.verify("written", mr.Bytes()[i*64:][:64], 1)
			}
		},
	},
	// A QP with SignalAll makes a completion of every work request, in the order of posting.
	{
		Name: "rc/signal all",
		A: func(s *Side) {
			e := s.connect(setup{signalAll: true})
			src, to := e.filled(4096, 1), Exchange(s, verbs.RemoteAddr{})
			var wrs []verbs.SendWR
			for id := range uint64(30) {
				switch id % 3 {
				case 0:
					wrs = append(wrs, unsignaled(write(id, to, src.SGE(0, 4096))))
				case 1:
					wrs = append(wrs, unsignaled(read(id, to, e.mr(8).SGE(0, 8))))
				case 2:
					wrs = append(wrs, unsignaled(send(id)))
				}
			}
			e.send(wrs...)
			for id := range uint64(30) {
				e.sent(id, []verbs.WCOpcode{verbs.WCRDMAWrite, verbs.WCRDMARead, verbs.WCSend}[id%3])
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(4096)
			for id := range uint64(10) {
				e.recv(recv(id))
			}
			Exchange(s, mr.Remote(0))
			for id := range uint64(10) {
				e.received(id, 0)
			}
		},
	},
	// A fenced work request sends what the READs before it have brought.
	{
		Name: "rc/fence",
		A: func(s *Side) {
			e := s.connect(setup{})
			const n, rounds = 8 << 10, 30
			buf, from := e.mr(n), Exchange(s, verbs.RemoteAddr{})
			for i := range rounds {
				fenced := send(2, buf.SGE(0, n))
				fenced.Flags |= verbs.SendFence
				e.send(read(1, from.Add(i%2*n), buf.SGE(0, n)), fenced)
				e.sent(1, verbs.WCRDMARead)
				e.sent(2, verbs.WCSend)
				s.Barrier()
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			const n, rounds = 8 << 10, 30
			src, in := e.mr(2*n), e.mr(n)
			fill(src.Bytes()[:n], 0)
			fill(src.Bytes()[n:], 1)
			e.recv(recv(0, in.SGE(0, n)))
			Exchange(s, src.Remote(0))
			for i := range rounds {
				e.received(uint64(i), n)
				s.verify("sent behind the fence", in.Bytes(), uint64(i%2))
				if s.Failed() {
					s.Fatalf("in round %d", i)
				}
				paint(in.Bytes())
				e.recv(recv(uint64(i+1), in.SGE(0, n)))
				s.Barrier()
			}
		},
	},
	// WRITEs and SENDs arrive in the order of posting, so a message comes after the data written before it.
	{
		Name: "rc/message after write",
		A: func(s *Side) {
			e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 1, MaxSendSGE: 1}})
			const n = 20_000
			src, to := e.mr(n), Exchange(s, verbs.RemoteAddr{})
			for i := range 50 {
				fill(src.Bytes(), uint64(i))
				e.send(unsignaled(write(1, to, src.SGE(0, n))), send(uint64(i)))
				e.sent(uint64(i), verbs.WCSend)
				s.Barrier()
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			const n = 20_000
			mr := e.mr(n)
			for id := range uint64(50) {
				e.recv(recv(id))
			}
			Exchange(s, mr.Remote(0))
			for i := range 50 {
				e.received(uint64(i), 0)
				s.verify("written before the message", mr.Bytes(), uint64(i))
				s.Barrier()
			}
		},
	},
	// The last word of a WRITE changes last. When it has changed, the whole WRITE is there.
	{
		Name: "rc/watching memory", Needs: LastWordLast,
		A: func(s *Side) {
			e := s.connect(setup{})
			const n = 9000 &^ 7
			src, to := e.mr(n), Exchange(s, verbs.RemoteAddr{})
			for i := range 50 {
				fill(src.Bytes()[:n-8], uint64(i))
				binary.NativeEndian.PutUint64(src.Bytes()[n-8:], uint64(i+1))
				e.send(write(1, to, src.SGE(0, n)))
				e.sent(1, verbs.WCRDMAWrite)
				s.Barrier()
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			const n = 9000 &^ 7
			mr := e.mr(n)
			Exchange(s, mr.Remote(0))
			for i := range 50 {
				e.watch("the last word", func() bool { return mr.Load64(n-8) == uint64(i+1) })
				s.verify("before the last word", mr.Bytes()[:n-8], uint64(i))
				s.Barrier()
			}
		},
	},
	// If a list has a bad work request, those before it are posted, and the QP works on.
	{
		Name: "rc/bad work request",
		A: func(s *Side) {
			e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			_, init, err := e.qp.Query()
			s.must(err)
			src, to := e.filled(64, 1), Exchange(s, verbs.RemoteAddr{})
			good := write(1, to, src.SGE(0, 64))
			tooMany := make([]verbs.SGE, init.Cap.MaxSendSGE+1)
			for i, bad := range []verbs.SendWR{
				{Op: 200},
				{Op: verbs.OpSend, Flags: 1 << 7},
				{Op: verbs.OpSend, SGList: tooMany},
				{Op: verbs.OpSend, InlineData: []byte{1}},
				{Op: verbs.OpRDMARead, Flags: verbs.SendInline, SGList: []verbs.SGE{src.SGE(0, 1)}},
				{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{src.SGE(0, 7)}, Remote: to},
				{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: to.Add(4)},
			} {
				n, err := e.qp.PostSend([]verbs.SendWR{good, good, bad, good})
				if n != 2 {
					s.Errorf("list %d: %d posted, want 2", i, n)
				}
				s.wantErr("bad work request", err, verbs.ErrInvalid, verbs.ErrLimit, verbs.ErrUnsupported)
				e.sent(1, verbs.WCRDMAWrite)
				e.sent(1, verbs.WCRDMAWrite)
			}
			n, err := e.qp.PostRecv([]verbs.RecvWR{recv(1), {SGList: make([]verbs.SGE, init.Cap.MaxRecvSGE+1)}, recv(2)})
			if n != 1 {
				s.Errorf("%d receives posted, want 1", n)
			}
			s.wantErr("bad receive", err, verbs.ErrLimit)
			s.empty(e.scq)
			e.placed()
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(64)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			e.see()
			s.verify("written", mr.Bytes(), 1)
			e.inState(verbs.QPStateRTS)
		},
	},
	// A queue takes as many work requests as were granted, and no more. Polling makes room.
	{
		Name: "rc/full queues",
		A: func(s *Side) {
			e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 1 << 10})
			_, init, err := e.qp.Query()
			s.must(err)
			src, to := e.filled(64, 1), Exchange(s, verbs.RemoteAddr{})
			wrs := make([]verbs.SendWR, init.Cap.MaxSendWR+3)
			for i := range wrs {
				wrs[i] = write(uint64(i), to, src.SGE(0, 64))
			}
			for range 2 {
				n, err := e.qp.PostSend(wrs)
				if n != init.Cap.MaxSendWR {
					s.Errorf("%d of %d sends posted, want %d, which the queue has room for", n, len(wrs), init.Cap.MaxSendWR)
				}
				s.wantErr("send to a full queue", err, verbs.ErrQueueFull)
				for i := range n {
					e.sent(uint64(i), verbs.WCRDMAWrite)
				}
			}
			n, err := e.qp.PostRecv(make([]verbs.RecvWR, init.Cap.MaxRecvWR+3))
			if n != init.Cap.MaxRecvWR {
				s.Errorf("%d receives posted, want %d, which the queue has room for", n, init.Cap.MaxRecvWR)
			}
			s.wantErr("receive to a full queue", err, verbs.ErrQueueFull)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			Exchange(s, e.mr(64).Remote(0))
		},
	},
	// A message that finds no receive waits until there is one.
	{
		Name: "rc/receive posted late", Needs: RNR,
		A: func(s *Side) {
			e := s.connect(setup{})
			other := s.connect(setup{})
			src := e.filled(10_000, 1)
			for i := range uint64(5) {
				e.send(send(2*i, src.SGE(0, 10_000)), writeImm(2*i+1, 7, Exchange(s, verbs.RemoteAddr{})))
				if i%2 == 0 {
					other.send(write(0, verbs.RemoteAddr{})) // its answer comes behind the message as a rule, which so has been there, and was refused
					other.sent(0, verbs.WCRDMAWrite)
				}
				s.Barrier()
				e.sent(2*i, verbs.WCSend)
				e.sent(2*i+1, verbs.WCRDMAWrite)
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{path: verbs.Path{MinRNRTimer: 1}})
			s.connect(setup{})
			in := e.mr(10_000)
			for i := range uint64(5) {
				Exchange(s, in.Remote(0))
				s.Barrier()
				e.recv(recv(i, in.SGE(0, 10_000)))
				e.received(i, 10_000)
				s.verify("received", in.Bytes(), 1)
				paint(in.Bytes())
				e.recv(recv(i))
				e.receivedAs(i, 0, verbs.WCRecvRDMAWithImm, verbs.WCFlagWithImm)
			}
		},
	},
}
