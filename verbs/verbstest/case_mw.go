package verbstest

import "github.com/adverb-rdma/adverb/verbs"

const (
	mwRegion = 4096 // bytes of the region, filled with seed 1
	mwOff    = 1024 // where the windows begin
	mwSize   = 1000 // and how long they are

	rw = verbs.AccessRemoteRead | verbs.AccessRemoteWrite
)

func (e *end) allocMW(t verbs.MWType) *verbs.MW {
	mw, err := e.pd.AllocMW(t)
	e.need(map[verbs.MWType]Capability{verbs.MWType1: MWType1, verbs.MWType2: MWType2}[t], err)
	e.closeLater(mw)
	return mw
}

// bindable makes a region that windows can be bound to. Its own key opens nothing.
func (e *end) bindable() *verbs.MR {
	mr := e.allocMR(e.pd, mwRegion, verbs.AccessLocalWrite|verbs.AccessMWBind)
	fill(mr.Bytes(), 1)
	return mr
}

func window(mw *verbs.MW, mr *verbs.MR, access verbs.Access) verbs.MWBind {
	return verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr() + mwOff, Length: mwSize, Access: access}
}

// bind1 binds a window of type 1, and returns the address of its first byte for a peer.
func (e *end) bind1(b verbs.MWBind) verbs.RemoteAddr {
	e.must(e.qp.BindMW(verbs.SendWR{ID: 7, Flags: verbs.SendSignaled}, b))
	e.sent(7, verbs.WCBindMW)
	return verbs.RemoteAddr{VA: b.Addr, RKey: b.MW.RKey()}
}

// use says what guest is to try with a window.
type use struct {
	At     verbs.RemoteAddr
	Read   bool
	Len    int
	Wants  verbs.WCStatus
	Second bool // through the second QP
	Renew  bool // connect anew after a failure
	End    bool
}

// guest is side A of the cases. It tries what B's script says, and connects anew after each failure.
func guest(s *Side) {
	pd := s.allocPD()
	connect := func() [2]*end { return [2]*end{s.connect(setup{pd: pd}), s.connect(setup{pd: pd})} }
	ends := connect()
	mr := s.allocMR(pd, mwRegion, everything)
	fill(mr.Bytes(), 2)
	for {
		u := Exchange(s, use{})
		if u.End {
			return
		}
		e := ends[0]
		if u.Second {
			e = ends[1]
		}
		wr, op := write(1, u.At, mr.SGE(0, u.Len)), verbs.WCRDMAWrite
		if u.Read {
			wr, op = read(1, u.At, mr.SGE(0, u.Len)), verbs.WCRDMARead
		}
		e.send(wr)
		switch {
		case u.Wants == verbs.WCSuccess:
			e.sent(1, op)
			e.placed()
		case u.Read:
			e.failed(1, u.Wants)
		default:
			e.denied(1, u.Wants)
		}
		if u.Read && u.Wants == verbs.WCSuccess {
			s.Barrier()
			Exchange(s, append([]byte(nil), mr.Bytes()[:u.Len]...))
			fill(mr.Bytes(), 2)
		} else {
			s.Barrier()
		}
		if u.Renew {
			ends = connect()
		}
	}
}

// host is side B, whose two QPs are connected to guest's.
type host struct {
	*Side
	pd   *verbs.PD
	ends [2]*end
}

func newHost(s *Side) *host {
	h := &host{Side: s, pd: s.allocPD()}
	h.connect()
	return h
}

func (h *host) connect() {
	for i := range h.ends {
		h.ends[i] = h.Side.connect(setup{pd: h.pd})
	}
}

// writes has the guest write n bytes of seed 2, which must get through.
func (h *host) writes(at verbs.RemoteAddr, n int) {
	Exchange(h.Side, use{At: at, Len: n})
	h.Barrier()
	h.ends[0].see()
}

// reads has the guest read, and returns what it got.
func (h *host) reads(at verbs.RemoteAddr, n int) []byte {
	Exchange(h.Side, use{At: at, Len: n, Read: true})
	h.Barrier()
	return Exchange(h.Side, []byte(nil))
}

// refuses has the guest try what must be refused, and connects anew.
func (h *host) refuses(u use) {
	u.Wants, u.Renew = verbs.WCRemAccessErr, true
	Exchange(h.Side, u)
	e := h.ends[0]
	if u.Second {
		e = h.ends[1]
	}
	e.refusedEvent(false)
	h.Barrier()
	h.connect()
}

func (h *host) done() { Exchange(h.Side, use{End: true}) }

// onlyWritten fails the case unless the bytes [off, off+n) of the region are those of seed 2, and all
// others those of seed 1.
func (s *Side) onlyWritten(mr *verbs.MR, off, n int) {
	w := make([]byte, mr.Len())
	fill(w, 1)
	fill(w[off:off+n], 2)
	s.same("the region", mr.Bytes(), w)
}

var mwCases = []Case{
	{
		Name: "mw/type 1: access and bounds", Needs: MWType1, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			e := h.ends[0]
			mr, mw := e.bindable(), e.allocMW(verbs.MWType1)
			want(s, "type", mw.Type(), verbs.MWType1)
			h.refuses(use{At: verbs.RemoteAddr{VA: mr.Addr() + mwOff, RKey: mw.RKey()}, Len: 8}) // bound to nothing
			at := h.ends[0].bind1(window(mw, mr, rw))
			h.writes(at, mwSize)
			s.onlyWritten(mr, mwOff, mwSize)
			s.same("read through the window", h.reads(at, mwSize), mr.Bytes()[mwOff:mwOff+mwSize])
			h.refuses(use{At: at.Add(1), Len: mwSize})
			h.refuses(use{At: at.Add(-1), Len: 8})
			h.refuses(use{At: at.Add(mwSize), Len: 1, Read: true})
			h.refuses(use{At: verbs.RemoteAddr{VA: at.VA, RKey: mr.RKey()}, Len: 8}) // the region itself opens nothing
			s.onlyWritten(mr, mwOff, mwSize)
			h.done()
			s.must(mw.Close())
		},
	},
	{
		Name: "mw/type 1: rights", Needs: MWType1, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			mr, mw := h.ends[0].bindable(), h.ends[0].allocMW(verbs.MWType1)
			at := h.ends[0].bind1(window(mw, mr, verbs.AccessRemoteRead))
			s.same("read", h.reads(at, 8), mr.Bytes()[mwOff:mwOff+8])
			h.refuses(use{At: at, Len: 8})
			at = h.ends[0].bind1(window(mw, mr, verbs.AccessRemoteWrite))
			h.refuses(use{At: at, Len: 8, Read: true})
			h.writes(at, 8)
			s.onlyWritten(mr, mwOff, 8)
			// Any QP of the PD may use it.
			Exchange(s, use{At: at, Len: 16, Second: true})
			s.Barrier()
			h.ends[1].see()
			s.onlyWritten(mr, mwOff, 16)
			h.done()
			s.must(mw.Close())
		},
	},
	// When a window is bound again it gets another key, and the old key ends. Length 0 unbinds it.
	{
		Name: "mw/type 1: rebind", Needs: MWType1, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			mr, mw := h.ends[0].bindable(), h.ends[0].allocMW(verbs.MWType1)
			old := h.ends[0].bind1(window(mw, mr, rw))
			b := window(mw, mr, rw)
			b.Addr, b.Length = mr.Addr(), 16
			at := h.ends[0].bind1(b)
			if at.RKey == old.RKey {
				s.Errorf("the window has key %v as before, want another", at.RKey)
			}
			h.refuses(use{At: old, Len: 8})
			h.refuses(use{At: verbs.RemoteAddr{VA: mr.Addr(), RKey: old.RKey}, Len: 8})
			h.writes(at, 16)
			s.onlyWritten(mr, 0, 16)
			at = h.ends[0].bind1(verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr()})
			h.refuses(use{At: at, Len: 8})
			s.must(mr.Close()) // nothing is bound to it
			h.done()
		},
	},
	// A region with a window does not close, and neither does a PD with one.
	{
		Name: "mw/type 1: closing", Needs: MWType1, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			mr, mw := h.ends[0].bindable(), h.ends[0].allocMW(verbs.MWType1)
			at := h.ends[0].bind1(window(mw, mr, rw))
			s.wantErr("close a region with a window", mr.Close(), verbs.ErrBusy)
			s.wantErr("close a PD with a window", h.pd.Close(), verbs.ErrBusy)
			h.writes(at, 8) // everything still works
			s.onlyWritten(mr, mwOff, 8)
			s.must(mw.Close())
			h.refuses(use{At: at, Len: 16})
			s.onlyWritten(mr, mwOff, 8)
			s.must(mr.Close())
			h.done()
		},
	},
	{
		Name: "mw/type 1: refused binds", Needs: MWType1,
		A: func(s *Side) {
			for range 4 {
				s.connect(setup{})
				s.Barrier()
			}
		},
		B: func(s *Side) {
			for i := range 4 {
				e := s.connect(setup{})
				mw, mr := e.allocMW(verbs.MWType1), e.bindable()
				b := window(mw, mr, rw)
				switch i {
				case 0: // outside the region
					b.Addr = mr.Addr() + mwRegion - mwSize + 1
				case 1: // a region that takes no windows
					b.MR = e.mr(mwRegion)
					b.Addr = b.MR.Addr()
				case 2: // a write window of a region that is read only
					b.MR = s.allocMR(e.pd, mwRegion, verbs.AccessMWBind)
					b.Addr = b.MR.Addr()
				case 3: // local access, which is refused at once
					b.Access |= verbs.AccessLocalWrite
				}
				err := e.qp.BindMW(verbs.SendWR{ID: 1}, b)
				if i == 3 {
					s.wantErr("bind with local access", err, verbs.ErrInvalid)
				} else if err == nil { // some devices find out by the post, others later
					e.failed(1, verbs.WCMWBindErr)
				} else {
					s.wantErr("bind", err, verbs.ErrInvalid)
				}
				s.must(mr.Close())
				s.Barrier()
			}
		},
	},
	both("mw/arguments", MWType1|MWType2, func(s *Side) {
		e := s.newEnd(setup{})
		_, err := e.pd.AllocMW(9)
		s.wantErr("a window of no type", err, verbs.ErrInvalid)
		one, two, mr := e.allocMW(verbs.MWType1), e.allocMW(verbs.MWType2), e.bindable()
		s.wantErr("BindMW of type 2", e.qp.BindMW(verbs.SendWR{}, window(two, mr, rw)), verbs.ErrInvalid)
		s.wantErr("BindMW of nothing", e.qp.BindMW(verbs.SendWR{}, verbs.MWBind{}), verbs.ErrInvalid)
		foreign := s.allocMR(s.allocPD(), 8, everything|verbs.AccessMWBind)
		s.wantErr("BindMW to another PD's region", e.qp.BindMW(verbs.SendWR{}, window(one, foreign, rw)), verbs.ErrInvalid)
		b := window(one, mr, rw)
		_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpBindMW, Bind: &b}})
		s.wantErr("OpBindMW of type 1", err, verbs.ErrInvalid)
		_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpBindMW}})
		s.wantErr("OpBindMW of nothing", err, verbs.ErrInvalid)
	}),
}
