package verbstest

import (
	"context"
	"errors"

	"github.com/adverb-rdma/adverb/verbs"
)

// spinNext returns the next completion, as next does, but does not arm the CQ.
func (s *Side) spinNext(cq *verbs.CQ) (wc verbs.WC) {
	var wcs [1]verbs.WC
	s.spin("a completion", func() bool {
		n, err := cq.Poll(wcs[:])
		s.must(err)
		return n == 1
	})
	return wcs[0]
}

// notified waits for an event of a CQ.
func (s *Side) notified(cq *verbs.CQ) {
	select {
	case <-cq.Events():
	case <-s.ctx.Done():
		s.Fatalf("no event of the CQ: %v", context.Cause(s.ctx))
	}
}

// silent fails the case if the CQ has raised an event.
func (s *Side) silent(cq *verbs.CQ, what string) {
	select {
	case <-cq.Events():
		s.Errorf("an event of the CQ %s, want none", what)
	default:
	}
}

// sender is side A of the cases that look at B's CQ. It sends what B orders.
func sender(s *Side) {
	e := s.connect(setup{})
	for {
		o := Exchange(s, order{})
		switch {
		case o.Pause:
			continue
		case o.Send == 0:
			return
		}
		for id := range uint64(o.Send) {
			wr, op := send(id), verbs.WCSend
			if o.Write {
				wr, op = writeImm(id, 1, verbs.RemoteAddr{}), verbs.WCRDMAWrite
			}
			wr.Flags |= o.Flags
			e.send(wr)
			e.sent(id, op)
		}
	}
}

type order struct {
	Send  int // messages; 0 ends the case
	Flags verbs.SendFlags
	Write bool
	Pause bool // send nothing, and wait for the next order
}

var cqCases = []Case{
	{
		Name: "cq/notify", A: sender,
		B: func(s *Side) {
			e := s.connect(setup{})
			for id := range uint64(8) {
				e.recv(recv(id))
			}
			s.must(e.rcq.Notify(false))
			s.silent(e.rcq, "that nothing came to")
			Exchange(s, order{Send: 1})
			s.notified(e.rcq)
			e.received(0, 0)
			s.must(e.rcq.Notify(false))
			Exchange(s, order{Send: 2})
			s.notified(e.rcq)
			s.spinNext(e.rcq)
			s.spinNext(e.rcq)
			s.silent(e.rcq, "for the second completion, which nobody armed it for")
			Exchange(s, order{Send: 1})
			s.spinNext(e.rcq)
			s.silent(e.rcq, "that was not armed")
			Exchange(s, order{})
		},
	},
	// A completion that waits in the queue raises no event when the queue is armed.
	{
		Name: "cq/exact events", Needs: ExactEvents, A: sender,
		B: func(s *Side) {
			e := s.connect(setup{})
			for id := range uint64(2) {
				e.recv(recv(id))
			}
			Exchange(s, order{Send: 1})
			Exchange(s, order{Pause: true}) // A takes it when the message has been acknowledged
			// A device may acknowledge a message just before it completes the receive. What the QP does next comes after.
			e.send(write(0, verbs.RemoteAddr{}))
			e.sent(0, verbs.WCRDMAWrite)
			s.must(e.rcq.Notify(false))
			s.silent(e.rcq, "for a completion from before Notify")
			s.spinNext(e.rcq)
			s.must(e.rcq.Notify(false))
			Exchange(s, order{Send: 1})
			s.notified(e.rcq)
			s.spinNext(e.rcq)
			Exchange(s, order{})
		},
	},
	{
		Name: "cq/solicited", A: sender,
		B: func(s *Side) {
			e := s.connect(setup{})
			for id := range uint64(8) {
				e.recv(recv(id))
			}
			s.must(e.rcq.Notify(true))
			Exchange(s, order{Send: 2})
			s.spinNext(e.rcq)
			s.spinNext(e.rcq)
			s.silent(e.rcq, "for a message that is not solicited")
			Exchange(s, order{Send: 1, Flags: verbs.SendSolicited})
			s.notified(e.rcq)
			s.spinNext(e.rcq)
			s.must(e.rcq.Notify(true))
			Exchange(s, order{Send: 1, Flags: verbs.SendSolicited, Write: true})
			s.notified(e.rcq)
			s.spinNext(e.rcq)
			s.must(e.rcq.Notify(true))
			e.modify(verbs.QPStateErr) // a failure counts as solicited
			s.notified(e.rcq)
			Exchange(s, order{})
		},
	},
	{
		Name: "cq/wait", A: sender,
		B: func(s *Side) {
			e := s.connect(setup{})
			ctx, cancel := context.WithCancel(s.ctx)
			cancel()
			var wcs [8]verbs.WC
			if n, err := e.rcq.Wait(ctx, wcs[:]); n != 0 || !errors.Is(err, context.Canceled) {
				s.Errorf("Wait with a context that has ended: %d, %v; want 0, %v", n, err, context.Canceled)
			}
			_, err := e.rcq.Wait(s.ctx, nil)
			s.wantErr("Wait with no room", err, verbs.ErrInvalid)
			for id := range uint64(3) {
				e.recv(recv(id))
			}
			Exchange(s, order{Send: 3})
			got := 0
			for got < 3 {
				n, err := e.rcq.Wait(s.ctx, wcs[got:])
				s.must(err)
				got += n
			}
			for id := range uint64(3) {
				want(s, "ID", wcs[id].ID, id)
			}
			Exchange(s, order{})

			// Close of a CQ ends the Wait of other goroutines.
			cq := s.createCQ(1)
			waited := make(chan error)
			go func() {
				_, err := cq.Wait(s.ctx, make([]verbs.WC, 1))
				waited <- err
			}()
			s.must(cq.Close())
			s.wantErr("Wait for a closed CQ", <-waited, verbs.ErrClosed)
		},
	},
	// Resize keeps the completions that wait, in their order.
	{
		Name: "cq/resize", Needs: ResizeCQ | ExactEvents, // the events tell when a completion has come
		A: func(s *Side) {
			cq := s.createCQ(4)
			s.need(ResizeCQ, cq.Resize(4))
			e := s.connect(setup{scq: cq})
			to, next := Exchange(s, verbs.RemoteAddr{}), uint64(0)
			put := func(n int) {
				for range n {
					s.must(cq.Notify(false))
					e.send(write(next, to))
					s.notified(cq)
					next++
				}
			}
			put(2)
			for id := range next {
				e.sent(id, verbs.WCRDMAWrite)
			}
			put(3) // in a ring of 4 they wrap around
			if err := cq.Resize(1); err == nil && cq.Cap() < 3 {
				s.Errorf("Resize to %d with 3 completions waiting, want room for them or an error", cq.Cap())
			} else if err != nil {
				s.wantErr("Resize to less than waits", err, verbs.ErrBusy)
			}
			s.must(cq.Resize(40))
			if cq.Cap() < 40 {
				s.Errorf("resized to 40: room for %d, want 40", cq.Cap())
			}
			put(30)
			for id := uint64(2); id < next; id++ {
				e.sent(id, verbs.WCRDMAWrite)
			}
			s.must(cq.Resize(2))
			put(2)
			e.sent(next-2, verbs.WCRDMAWrite)
			e.sent(next-1, verbs.WCRDMAWrite)
			s.wantErr("Resize(0)", cq.Resize(0), verbs.ErrInvalid)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			Exchange(s, e.mr(8).Remote(0))
		},
	},
	// A completion that finds no room is lost. The queue says so, by events and by Poll, and its QP fails.
	{
		Name: "cq/overflow", Needs: OverrunStatus,
		A: func(s *Side) {
			cq := s.createCQ(2)
			room := cq.Cap()
			e := s.connect(setup{scq: cq, cap: verbs.QPCap{MaxSendWR: room + 1, MaxSendSGE: 1}})
			to := Exchange(s, verbs.RemoteAddr{})
			for id := range uint64(room + 1) {
				e.send(write(id, to))
			}
			cqErr, qpFatal := false, false
			for !cqErr || !qpFatal {
				switch ev := s.nextEvent(); {
				case ev.Type == verbs.EventCQErr && ev.CQ == cq:
					cqErr = true
				case ev.Type == verbs.EventQPFatal && ev.QP == e.qp:
					qpFatal = true
				default:
					s.Fatalf("event %v, want EVENT_CQ_ERR of the CQ and EVENT_QP_FATAL of its QP", ev.Type)
				}
			}
			e.inState(verbs.QPStateErr)
			for id := range uint64(room) {
				e.sent(id, verbs.WCRDMAWrite)
			}
			_, err := cq.Poll(make([]verbs.WC, 1))
			s.wantErr("Poll after the overrun", err, verbs.ErrCQOverrun)
			_, err = cq.Wait(s.ctx, make([]verbs.WC, 1))
			s.wantErr("Wait after the overrun", err, verbs.ErrCQOverrun)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			Exchange(s, e.mr(8).Remote(0))
		},
	},
}
