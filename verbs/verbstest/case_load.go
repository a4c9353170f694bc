package verbstest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

var loadCases = []Case{
	{Name: "rc/ping-pong", A: func(s *Side) { pingPong(s, true) }, B: func(s *Side) { pingPong(s, false) }},
	{Name: "rc/stream both ways", Needs: RNR, A: stream, B: stream},
	{Name: "rc/32 QPs at once", A: crowd, B: crowd},
	// More READs are posted than the QPs allow at a time, and each brings its own data.
	{
		Name: "rc/outstanding reads",
		A: func(s *Side) {
			for _, depth := range []int{1, 4} {
				e := s.connect(setup{retry: verbs.Retry{Timeout: 17, RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: depth}})
				n := 3*e.mtu + 1
				sizes := make([]int, 32)
				for i := range sizes {
					sizes[i] = n
				}
				mr, offs := e.region(sizes, false)
				from := Exchange(s, verbs.RemoteAddr{})
				var wrs []verbs.SendWR
				for i := range sizes {
					wrs = append(wrs, read(uint64(i), from.Add(offs[i]), mr.SGE(offs[i], n)))
				}
				e.send(wrs...)
				for i := range sizes {
					e.sent(uint64(i), verbs.WCRDMARead)
				}
				s.checkLayout(mr, sizes)
			}
		},
		B: func(s *Side) {
			for _, depth := range []int{1, 4} {
				e := s.connect(setup{path: verbs.Path{MaxDestRDAtomic: min(depth, s.attr().MaxQPRdAtom)}})
				n := 3*e.mtu + 1
				sizes := make([]int, 32)
				for i := range sizes {
					sizes[i] = n
				}
				mr, _ := e.region(sizes, true)
				Exchange(s, mr.Remote(0))
			}
		},
	},
	// WRITEs and READs of both sides cross.
	{Name: "rc/one-sided both ways", A: oneSided, B: oneSided},
}

// pingPong sends a counter to the other side, which sends it back.
func pingPong(s *Side, first bool) {
	const rounds = 1000
	e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	out, in := e.mr(64), e.mr(64)
	e.recv(recv(0, in.SGE(0, 64)))
	s.Barrier()
	ping := func(i int) {
		binary.LittleEndian.PutUint64(out.Bytes()[i%56:], uint64(i))
		e.send(send(uint64(i), out.SGE(i%56, 8)))
	}
	if first {
		ping(0)
	}
	for i := range rounds {
		e.received(uint64(i), 8)
		want(s, "counter", binary.LittleEndian.Uint64(in.Bytes()), uint64(i))
		e.recv(recv(uint64(i+1), in.SGE(0, 64)))
		switch {
		case !first:
			ping(i)
			e.sent(uint64(i), verbs.WCSend)
		case i+1 < rounds:
			e.sent(uint64(i), verbs.WCSend)
			ping(i + 1)
		}
		if s.Failed() {
			return
		}
	}
}

// stream sends messages of many sizes, and receives the other side's, both as fast as it can.
func stream(s *Side) {
	const messages, depth, size = 1000, 16, 9000
	e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}})
	out, in := e.mr(depth*size), e.mr(depth*size)
	post := func(i int) { e.recv(recv(uint64(i), in.SGE(i%depth*size, size))) }
	length := func(i int) int { return i * 7919 % size }
	for i := range depth {
		post(i)
	}
	s.Barrier()
	var wg sync.WaitGroup
	wg.Go(func() { // it fails by cancel, since Fatalf belongs to the script's goroutine
		done := 0
		take := func() bool {
			var wcs [1]verbs.WC
			_, err := e.scq.Wait(s.ctx, wcs[:])
			if err != nil || wcs[0].Status != verbs.WCSuccess || wcs[0].ID != uint64(done) {
				s.cancel(fmt.Errorf("send completion %d: got %+v, %v", done, wcs[0], err))
				return false
			}
			done++
			return true
		}
		for i := range messages {
			if i-done == depth && !take() {
				return
			}
			b := out.Bytes()[i%depth*size:][:length(i)]
			fill(b, uint64(i))
			if _, err := e.qp.PostSend([]verbs.SendWR{send(uint64(i), out.SGE(i%depth*size, len(b)))}); err != nil {
				s.cancel(err)
				return
			}
		}
		for done < messages && take() {
		}
	})
	defer wg.Wait()
	for i := range messages {
		e.received(uint64(i), length(i))
		s.verify("message", in.Bytes()[i%depth*size:][:length(i)], uint64(i))
		if s.Failed() {
			s.Fatalf("at message %d", i)
		}
		if i+depth < messages {
			post(i + depth)
		}
	}
	wg.Wait()
	s.must(context.Cause(s.ctx))
}

// crowd has 32 QPs, which share their CQs, exchange messages with the other side's 32.
func crowd(s *Side) {
	const qps, rounds, size = 32, 8, 5000
	pd := s.allocPD()
	scq, rcq := s.createCQ(qps*rounds), s.createCQ(qps*rounds)
	var ends [qps]*end
	index := map[verbs.QPN]int{}
	out, in := s.allocMR(pd, qps*size, everything), s.allocMR(pd, qps*rounds*size, everything)
	for i := range ends {
		e := s.connect(setup{pd: pd, scq: scq, rcq: rcq, cap: verbs.QPCap{MaxSendWR: rounds, MaxRecvWR: rounds, MaxSendSGE: 1, MaxRecvSGE: 1}})
		ends[i], index[e.qp.QPN()] = e, i
		fill(out.Bytes()[i*size:][:size], uint64(i))
		for r := range rounds {
			e.recv(recv(uint64(r), in.SGE((i*rounds+r)*size, size)))
		}
	}
	s.Barrier()
	for r := range rounds {
		for i, e := range ends {
			e.send(send(uint64(r), out.SGE(i*size, size)))
		}
	}
	for _, cq := range []*verbs.CQ{scq, rcq} {
		var next [qps]int
		for range qps * rounds {
			wc := s.next(cq)
			s.must(wc.Err())
			i, ok := index[wc.QPN]
			if !ok || int(wc.ID) != next[i] {
				s.Fatalf("completion %d of qp %v (%d), want %d", wc.ID, wc.QPN, i, next[i])
			}
			next[i]++
			if cq == rcq {
				want(s, "ByteLen", wc.ByteLen, size)
				s.verify("message", in.Bytes()[(i*rounds+int(wc.ID))*size:][:size], uint64(i))
			}
		}
		s.empty(cq)
	}
}

// oneSided writes to the other side's memory and reads it back. The other side does the same.
func oneSided(s *Side) {
	const n, rounds = 20_000, 20
	e := s.connect(setup{})
	src, dst, theirs := e.mr(n), e.mr(n), e.mr(n)
	to := Exchange(s, theirs.Remote(0))
	for i := range rounds {
		fill(src.Bytes(), uint64(i))
		e.send(write(1, to, src.SGE(0, n)), read(2, to, dst.SGE(0, n)))
		e.sent(1, verbs.WCRDMAWrite)
		e.sent(2, verbs.WCRDMARead)
		s.verify("read back", dst.Bytes(), uint64(i))
		if s.Failed() {
			return
		}
	}
}
