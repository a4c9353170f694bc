package verbstest

import "github.com/adverb-rdma/adverb/verbs"

// mostVectors is how many completion vectors of a device are tried. Cards have as many as the host has CPUs.
const mostVectors = 4

// createCQEx makes a CQ with attributes.
func (s *Side) createCQEx(a verbs.CQAttr) *verbs.CQ {
	cq, err := s.Device.CreateCQEx(a)
	s.need(Timestamps, err)
	s.closeLater(cq)
	return cq
}

var cqAttrCases = []Case{
	// Each completion vector raises the events of its CQs.
	{
		Name: "cq/completion vectors",
		A: func(s *Side) {
			for range Exchange(s, 0) {
				e := s.connect(setup{})
				s.Barrier()
				e.send(send(1))
				e.sent(1, verbs.WCSend)
			}
		},
		B: func(s *Side) {
			all := max(s.attr().NumCompVectors, 1)
			for _, bad := range []int{-1, all} {
				_, err := s.Device.CreateCQEx(verbs.CQAttr{Entries: 1, CompVector: bad})
				s.wantErr("a vector that the device has not", err, verbs.ErrInvalid)
			}
			n := min(all, mostVectors)
			Exchange(s, n)
			for v := range n {
				cq := s.createCQEx(verbs.CQAttr{Entries: 128, CompVector: v})
				e := s.connect(setup{rcq: cq})
				e.recv(recv(1))
				s.must(cq.Notify(false))
				s.Barrier()
				s.notified(cq)
				wc := s.spinNext(cq)
				want(s, "ID", wc.ID, 1)
				want(s, "timestamp of a CQ without", wc.Timestamp, 0)
			}
		},
	},
	// The completions of a CQ with timestamps tell when they came: after the program's look at the clock before the post, and
	// before the one after the poll, in order. All else of them is as it is without: immediate data, lengths, failures.
	{
		Name: "cq/timestamps", Needs: Timestamps,
		A: func(s *Side) {
			e := s.connect(setup{scq: s.createCQEx(verbs.CQAttr{Entries: 128, Timestamps: verbs.DeviceTimestamps})})
			src := e.filled(1000, 1)
			_, err := s.Device.CreateCQEx(verbs.CQAttr{Entries: 1, Timestamps: verbs.WallclockTimestamps + 1})
			s.wantErr("a clock that there is not", err, verbs.ErrInvalid)
			s.Barrier()
			clock := s.clock()
			for id := range uint64(4) {
				e.send(sendImmIf(s, id, src.SGE(0, 100*int(id))))
				clock.later(e.sent(id, verbs.WCSend).Timestamp)
			}
			to := Exchange(s, verbs.RemoteAddr{})
			e.send(read(5, to, src.SGE(0, 8)))
			clock.later(e.sent(5, verbs.WCRDMARead).Timestamp)
			e.send(read(6, to.Add(1), src.SGE(0, 8)), read(7, to, src.SGE(0, 8)))
			wc := e.next(e.scq)
			if wc.ID != 6 || !e.isStatus(wc.Status, verbs.WCRemAccessErr) {
				s.Errorf("completion %d with %v, want %d with %v", wc.ID, wc.Status, 6, verbs.WCRemAccessErr)
			}
			clock.later(wc.Timestamp)
			wc = e.next(e.scq)
			want(s, "status", wc.Status, verbs.WCFlushErr)
			clock.later(wc.Timestamp)
			clock.end()
		},
		B: func(s *Side) {
			e := s.connect(setup{rcq: s.createCQEx(verbs.CQAttr{Entries: 128, Timestamps: verbs.DeviceTimestamps})})
			in := e.mr(4000)
			for id := range uint64(4) {
				e.recv(recv(id, in.SGE(1000*int(id), 1000)))
			}
			clock := s.clock()
			s.Barrier()
			for id := range uint64(4) {
				var wc verbs.WC
				if s.has(SendImm) {
					wc = e.receivedAs(id, 100*int(id), verbs.WCRecv, verbs.WCFlagWithImm)
					want(s, "immediate", wc.Imm, uint32(id)+1<<24)
				} else {
					wc = e.received(id, 100*int(id))
				}
				clock.later(wc.Timestamp)
			}
			clock.end()
			Exchange(s, e.mr(8).Remote(0))
			e.refusedEvent(false)
		},
	},
}

// sendImmIf is a SEND, with immediate data where there is some.
func sendImmIf(s *Side, id uint64, sges ...verbs.SGE) verbs.SendWR {
	if !s.has(SendImm) {
		return send(id, sges...)
	}
	return sendImm(id, uint32(id)+1<<24, sges...)
}

// deviceClock looks at timestamps of a device.
type deviceClock struct {
	s    *Side
	attr verbs.DeviceAttr
	last uint64
}

// clock begins to look. Timestamps come from now on.
func (s *Side) clock() *deviceClock {
	t, err := s.Device.RawClock()
	s.need(Timestamps, err)
	return &deviceClock{s, s.attr(), t}
}

// later fails the case unless t comes after the last timestamp, or at the same time. Clocks go around, so what is half a turn
// later comes before.
func (c *deviceClock) later(t uint64) {
	if t&^c.attr.TimestampMask != 0 {
		c.s.Errorf("timestamp %#x has bits beyond the mask %#x", t, c.attr.TimestampMask)
	}
	if (t-c.last)&c.attr.TimestampMask > c.attr.TimestampMask/2 {
		c.s.Errorf("timestamp %d comes before %d", t, c.last)
	}
	c.last = t
}

// end fails the case if the last timestamp is of the future, or long ago.
func (c *deviceClock) end() {
	last := c.last
	t, err := c.s.Device.RawClock()
	c.s.must(err)
	c.later(t)
	if d := c.attr.Elapsed(last, t); c.attr.HCACoreClock == 0 || d > Patience {
		c.s.Errorf("the last completion came %v ago, by a clock of %d kHz: want less than %v", d, c.attr.HCACoreClock, Patience)
	}
}
