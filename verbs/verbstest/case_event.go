package verbstest

import (
	"context"
	"errors"

	"github.com/adverb-rdma/adverb/verbs"
)

var eventCases = []Case{
	// A QP in RTR raises an event when the first message has come. Its program may then take it to RTS.
	{
		Name: "event/communication established", Needs: ByHand,
		A: func(s *Side) {
			e := s.connect(setup{})
			s.Barrier()
			e.send(write(1, verbs.RemoteAddr{}), send(2))
			e.sent(1, verbs.WCRDMAWrite)
			e.sent(2, verbs.WCSend)
			e.recv(recv(3))
			s.Barrier()
			e.received(3, 0)
		},
		B: func(s *Side) {
			e := s.connect(setup{stay: true})
			e.recv(recv(1))
			s.Barrier()
			want(s, "QP of the event", s.event(verbs.EventCommEst).QP, e.qp)
			e.received(1, 0)
			e.inState(verbs.QPStateRTR)
			e.rts()
			s.Barrier()
			e.send(send(2))
			e.sent(2, verbs.WCSend)
		},
	},
	// In SQD a send queue finishes what it has begun, and raises an event. In RTS it goes on.
	{
		Name: "event/send queue drained", Needs: SQD,
		A: func(s *Side) {
			e := s.connect(setup{})
			other := s.connect(setup{pd: e.pd})
			src, back := e.filled(64<<10, 1), e.mr(8)
			to := Exchange(s, verbs.RemoteAddr{})
			drain := func() {
				s.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify))
				want(s, "QP of the event", s.event(verbs.EventSQDrained).QP, e.qp)
				a, _, err := e.qp.Query()
				s.must(err)
				if a.State != verbs.QPStateSQD || a.SQDraining {
					s.Errorf("after the event: %v, draining %v; want QPS_SQD, false", a.State, a.SQDraining)
				}
			}
			e.send(write(1, to, src.SGE(0, 64<<10)), write(2, to, src.SGE(0, 64<<10)))
			drain()
			e.send(write(3, to.Add(64<<10), src.SGE(0, 8))) // waits for RTS
			for range 3 {                                   // by another QP, which shows that 3 waits
				other.send(read(4, to.Add(64<<10), back.SGE(0, 8)))
				other.sent(4, verbs.WCRDMARead)
				s.same("written in SQD", back.Bytes(), make([]byte, 8))
			}
			s.Barrier()
			e.recv(recv(5)) // the receive queue works in SQD too
			s.Barrier()
			e.received(5, 0)
			e.modify(verbs.QPStateRTS)
			// Work requests 1 and 2 were done before SQD, while it drained, or after it.
			e.sent(1, verbs.WCRDMAWrite)
			e.sent(2, verbs.WCRDMAWrite)
			e.sent(3, verbs.WCRDMAWrite)
			drain() // with nothing to do
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			s.connect(setup{pd: e.pd})
			mr := e.mr(64<<10 + 8)
			Exchange(s, mr.Remote(0))
			s.Barrier()
			s.Barrier()
			e.send(send(1))
			e.sent(1, verbs.WCSend)
			s.Barrier()
			e.see()
			s.verify("written", mr.Bytes()[:64<<10], 1)
			head := make([]byte, 8)
			fill(head, 1)
			s.same("written after SQD", mr.Bytes()[64<<10:], head)
		},
	},
	both("event/waiting in vain", 0, func(s *Side) {
		ctx, cancel := context.WithCancel(s.ctx)
		cancel()
		if _, err := s.Device.NextEvent(ctx); !errors.Is(err, context.Canceled) {
			s.Errorf("NextEvent with a context that has ended: %v, want %v", err, context.Canceled)
		}
	}),
}
