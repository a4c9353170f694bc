package verbstest

import "github.com/adverb-rdma/adverb/verbs"

// bindOf returns the work request of a bind. The window is of type 2.
func bindOf(id uint64, b *verbs.MWBind) verbs.SendWR {
	b.RKey = verbs.IncRKey(b.MW.RKey())
	return verbs.SendWR{ID: id, Op: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: b}
}

// bind2 binds a window of type 2, and returns the address of its first byte for a peer.
func (e *end) bind2(b verbs.MWBind) verbs.RemoteAddr {
	e.send(bindOf(7, &b))
	e.sent(7, verbs.WCBindMW)
	want(e.Side, "key of the window", b.MW.RKey(), b.RKey)
	at := verbs.RemoteAddr{VA: b.Addr, RKey: b.RKey}
	if b.Access&verbs.AccessZeroBased != 0 {
		at.VA = 0
	}
	return at
}

func invalidate(id uint64, key verbs.RKey) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: key}
}

var mw2Cases = []Case{
	{
		Name: "mw/type 2: access and bounds", Needs: MWType2, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			mr, mw := h.ends[0].bindable(), h.ends[0].allocMW(verbs.MWType2)
			want(s, "type", mw.Type(), verbs.MWType2)
			at := h.ends[0].bind2(window(mw, mr, rw))
			h.writes(at, mwSize)
			s.onlyWritten(mr, mwOff, mwSize)
			s.same("read through the window", h.reads(at, mwSize), mr.Bytes()[mwOff:mwOff+mwSize])
			// Only the QP that bound it may use it.
			h.refuses(use{At: at, Len: 8, Second: true})
			s.must(mw.Close())

			mw = h.ends[0].allocMW(verbs.MWType2)
			at = h.ends[0].bind2(window(mw, mr, verbs.AccessRemoteRead|verbs.AccessZeroBased))
			s.same("read, zero based", h.reads(at.Add(8), 8), mr.Bytes()[mwOff+8:mwOff+16])
			h.refuses(use{At: at.Add(mwSize - 7), Len: 8, Read: true})
			s.must(mw.Close())

			mw = h.ends[0].allocMW(verbs.MWType2)
			h.refuses(use{At: h.ends[0].bind2(window(mw, mr, verbs.AccessRemoteRead)), Len: 8})
			s.onlyWritten(mr, mwOff, mwSize)
			s.must(mw.Close())
			h.done()
		},
	},
	// LOCAL_INV ends the key of a window. The window can then be bound again, with another key.
	{
		Name: "mw/type 2: invalidate and rebind", Needs: MWType2, A: guest,
		B: func(s *Side) {
			h := newHost(s)
			e := h.ends[0]
			mr, mw := e.bindable(), e.allocMW(verbs.MWType2)
			at := e.bind2(window(mw, mr, rw))
			h.writes(at, 8)
			s.wantErr("close a region with a window", mr.Close(), verbs.ErrBusy)
			e.send(invalidate(1, at.RKey))
			e.sent(1, verbs.WCLocalInv)
			next := e.bind2(window(mw, mr, rw))
			if next.RKey == at.RKey || next.RKey>>8 != at.RKey>>8 {
				s.Errorf("key %v after %v, want another with the same upper 24 bits", next.RKey, at.RKey)
			}
			h.writes(next, 16)
			s.onlyWritten(mr, mwOff, 16)
			e.send(invalidate(2, next.RKey))
			e.sent(2, verbs.WCLocalInv)
			h.refuses(use{At: next, Len: 32})
			s.onlyWritten(mr, mwOff, 16)
			s.must(mr.Close())
			h.done()
		},
	},
	// A bind, the message that gives its key away, and the invalidation are done in the order of posting.
	{
		Name: "mw/type 2: posted in a list", Needs: MWType2,
		A: func(s *Side) {
			e := s.connect(setup{})
			in, src := e.mr(16), e.filled(64, 2)
			e.recv(recv(1, in.SGE(0, 16)), recv(2))
			to := Exchange(s, verbs.RemoteAddr{})
			e.received(1, 1)
			e.send(write(2, to, src.SGE(0, 64)))
			e.sent(2, verbs.WCRDMAWrite)
			e.placed()
			s.Barrier()
			e.received(2, 0)
			e.send(write(3, to, src.SGE(0, 64))) // the key was taken back before that message
			e.denied(3, verbs.WCRemAccessErr)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr, mw := e.bindable(), e.allocMW(verbs.MWType2)
			b := window(mw, mr, rw)
			wr := bindOf(1, &b)
			Exchange(s, verbs.RemoteAddr{VA: b.Addr, RKey: b.RKey})
			out := e.mr(1)
			e.send(unsignaled(wr), send(2, out.SGE(0, 1)))
			e.sent(2, verbs.WCSend)
			s.Barrier()
			e.see()
			s.onlyWritten(mr, mwOff, 64)
			e.send(unsignaled(invalidate(3, b.RKey)), send(4))
			e.sent(4, verbs.WCSend)
			e.refusedEvent(false)
			s.must(mr.Close())
		},
	},
	// A message of a peer (SEND_WITH_INV) ends the key of a window.
	{
		Name: "mw/type 2: send with invalidate", Needs: MWType2,
		A: func(s *Side) {
			e := s.connect(setup{})
			src := e.filled(64, 2)
			at := Exchange(s, verbs.RemoteAddr{})
			e.send(write(1, at, src.SGE(0, 64)), verbs.SendWR{
				ID: 2, Op: verbs.OpSendWithInv, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 10)}, InvalidateRKey: at.RKey,
			})
			e.sent(1, verbs.WCRDMAWrite)
			e.sent(2, verbs.WCSend)
			s.Barrier()
			at = Exchange(s, verbs.RemoteAddr{}) // bound anew
			e.send(write(3, at, src.SGE(0, 64)))
			e.sent(3, verbs.WCRDMAWrite)
			e.placed()
			s.Barrier()
			e.send(verbs.SendWR{Op: verbs.OpSendWithInv, InvalidateRKey: at.RKey}, write(4, at, src.SGE(0, 64)))
			e.denied(4, verbs.WCRemAccessErr)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr, mw, in := e.bindable(), e.allocMW(verbs.MWType2), e.mr(64)
			at := e.bind2(window(mw, mr, rw))
			e.recv(recv(1, in.SGE(0, 64)), recv(2))
			Exchange(s, at)
			wc := e.receivedAs(1, 10, verbs.WCRecv, verbs.WCFlagWithInv)
			want(s, "invalidated key", verbs.RKey(wc.Imm), at.RKey)
			s.verify("message", in.Bytes()[:10], 2)
			s.onlyWritten(mr, mwOff, 64)
			s.Barrier()
			b := window(mw, mr, rw)
			b.Addr = mr.Addr()
			Exchange(s, e.bind2(b))
			s.Barrier()
			e.receivedAs(2, 0, verbs.WCRecv, verbs.WCFlagWithInv)
			e.refusedEvent(false)
			s.must(mr.Close()) // both keys are taken back
		},
	},
	// A peer cannot invalidate a key that is not of a window of this QP.
	{
		Name: "mw/type 2: send with a bad invalidate", Needs: MWType2,
		A: func(s *Side) {
			e := s.connect(setup{retry: quick})
			key := Exchange(s, verbs.RKey(0))
			if e.send(verbs.SendWR{ID: 1, Op: verbs.OpSendWithInv, InvalidateRKey: key}); !s.has(Acknowledged) {
				e.denied(1, verbs.WCRemAccessErr)
				return
			}
			wc := s.next(e.scq) // devices differ in what they answer
			if wc.ID != 1 || wc.Status == verbs.WCSuccess {
				s.Errorf("completion %d, %v; want a failure", wc.ID, wc.Status)
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr := e.mr(8)
			e.recv(recv(1), recv(2))
			Exchange(s, mr.RKey())
			wc := s.next(e.rcq)
			if wc.ID != 1 || wc.Status == verbs.WCSuccess || wc.Status == verbs.WCFlushErr {
				s.Errorf("receive completion %d, %v; want a failure", wc.ID, wc.Status)
			}
			e.inState(verbs.QPStateErr)
			e.fails(e.rcq, 2, verbs.WCFlushErr)
		},
	},
	{
		Name: "mw/type 2: refused binds", Needs: MWType2,
		A: func(s *Side) {
			for range refusedBinds {
				s.connect(setup{})
				s.Barrier()
			}
		},
		B: func(s *Side) {
			for i := range refusedBinds {
				e := s.connect(setup{})
				mw, mr := e.allocMW(verbs.MWType2), e.bindable()
				b := window(mw, mr, rw)
				wr := bindOf(1, &b)
				bound := false
				switch i {
				case 0: // outside the region
					b.Addr = mr.Addr() + mwRegion - mwSize + 1
				case 1: // a region that takes no windows
					b.MR = e.mr(mwRegion)
					b.Addr = b.MR.Addr()
				case 2: // a window that is bound
					e.bind2(b)
					bound = true
					b.RKey = verbs.IncRKey(mw.RKey())
				case 3: // a key of another's
					b.RKey ^= 0x100
				case 4: // a key that nobody has
					wr = invalidate(1, mw.RKey()^0x5a)
				}
				n, err := e.qp.PostSend([]verbs.SendWR{wr, send(2)})
				if err != nil { // some devices find out by the post, others later
					s.wantErr("bind", err, verbs.ErrInvalid)
					want(s, "posted", n, 0)
				} else {
					e.failed(1, verbs.WCMWBindErr, verbs.WCLocQPOpErr, verbs.WCGeneralErr)
					e.flushed(2)
				}
				if !bound {
					s.must(mr.Close())
				}
				s.must(mw.Close())
				s.Barrier()
			}
		},
	},
	// When a QP is closed the keys of its windows end, and their region can be closed.
	{
		Name: "mw/type 2: the QP goes", Needs: MWType2,
		A: func(s *Side) { s.connect(setup{}) },
		B: func(s *Side) {
			e := s.connect(setup{})
			mr, mw := e.bindable(), e.allocMW(verbs.MWType2)
			e.bind2(window(mw, mr, rw))
			s.must(e.qp.Close()) // IBTA o10-2.2.5
			s.must(mw.Close())
			s.must(mr.Close())
		},
	},
}

const refusedBinds = 5
