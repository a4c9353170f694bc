package verbstest

import (
	"github.com/adverb-rdma/adverb/verbs"
)

// gap is how many painted bytes lie between the messages of a region, at least.
const gap = 24

// messageSizes returns the sizes at which messages begin to need other packets. An unreliable connection
// has them all in flight at once, which the buffers on the way must hold; so its list is shorter.
func messageSizes(typ verbs.QPType, mtu int) []int {
	sizes := []int{0, 1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu + 5, 64 << 10}
	if typ == verbs.QPTypeRC {
		sizes = append(sizes, 1<<20)
	}
	return sizes
}

// layout returns where messages of the sizes begin in a region, with a gap behind each, and how long the
// region is.
func layout(sizes []int) (offs []int, total int) {
	for _, n := range sizes {
		offs = append(offs, total)
		total += (n + gap + 7) &^ 7
	}
	return offs, total
}

// checkLayout verifies the messages, whose seeds count from 1, and the gaps.
func (s *Side) checkLayout(mr *verbs.MR, sizes []int) {
	offs, total := layout(sizes)
	offs = append(offs, total)
	for i, n := range sizes {
		s.verify("message", mr.Bytes()[offs[i]:offs[i]+n], uint64(i+1))
		s.untouched("behind the message", mr.Bytes()[offs[i]+n:offs[i+1]])
	}
}

// region makes a painted region for messages of the sizes. If filled is true, the messages are in it.
func (e *end) region(sizes []int, filled bool) (*verbs.MR, []int) {
	offs, total := layout(sizes)
	mr := e.mr(total)
	paint(mr.Bytes())
	for i, n := range sizes {
		if filled {
			fill(mr.Bytes()[offs[i]:offs[i]+n], uint64(i+1))
		}
	}
	return mr, offs
}

// sendCase makes a case of SENDs of many sizes, on connected QPs of a type. With imm they have immediate
// data.
func sendCase(name string, typ verbs.QPType, needs Capability, imm bool) Case {
	return Case{
		Name: name, Needs: needs,
		A: func(s *Side) {
			e := s.connect(setup{typ: typ})
			sizes := messageSizes(typ, e.mtu)
			mr, offs := e.region(sizes, true)
			s.Barrier()
			for i, n := range sizes {
				wr := send(uint64(i), mr.SGE(offs[i], n))
				if imm {
					wr = sendImm(uint64(i), immOf(i), mr.SGE(offs[i], n))
				}
				e.send(wr)
			}
			for i := range sizes {
				e.sent(uint64(i), verbs.WCSend)
			}
		},
		B: func(s *Side) {
			e := s.connect(setup{typ: typ})
			sizes := messageSizes(typ, e.mtu)
			mr, offs := e.region(sizes, false)
			for i, n := range sizes {
				e.recv(recv(uint64(100+i), mr.SGE(offs[i], n)))
			}
			s.Barrier()
			for i, n := range sizes {
				if !imm {
					e.received(uint64(100+i), n)
				} else if wc := e.receivedAs(uint64(100+i), n, verbs.WCRecv, verbs.WCFlagWithImm); wc.Imm != immOf(i) {
					s.Errorf("immediate %#x, want %#x", wc.Imm, immOf(i))
				}
			}
			s.checkLayout(mr, sizes)
		},
	}
}

func immOf(i int) uint32 { return 0xdeadbe00 ^ uint32(i) }

// writeCase makes a case of WRITEs of many sizes. B's program hears of them by immediate data, with imm,
// or by the control channel.
func writeCase(name string, typ verbs.QPType, needs Capability, imm bool) Case {
	return Case{
		Name: name, Needs: needs,
		A: func(s *Side) {
			e := s.connect(setup{typ: typ})
			sizes := messageSizes(typ, e.mtu)
			mr, offs := e.region(sizes, true)
			to := Exchange(s, verbs.RemoteAddr{})
			for i, n := range sizes {
				wr := write(uint64(i), to.Add(offs[i]), mr.SGE(offs[i], n))
				if imm || typ != verbs.QPTypeRC && i == len(sizes)-1 { // on UC the completion of a WRITE does not say that it has arrived
					wr = writeImm(uint64(i), immOf(i), to.Add(offs[i]), mr.SGE(offs[i], n))
				}
				e.send(wr)
			}
			for i := range sizes {
				e.sent(uint64(i), verbs.WCRDMAWrite)
			}
			if typ == verbs.QPTypeRC {
				e.placed()
			}
			s.Barrier()
		},
		B: func(s *Side) {
			e := s.connect(setup{typ: typ})
			sizes := messageSizes(typ, e.mtu)
			mr, _ := e.region(sizes, false)
			for i := range sizes {
				if imm || typ != verbs.QPTypeRC && i == len(sizes)-1 {
					e.recv(recv(uint64(100 + i)))
				}
			}
			Exchange(s, mr.Remote(0))
			for i, n := range sizes {
				if !imm && (typ == verbs.QPTypeRC || i < len(sizes)-1) {
					continue
				}
				if wc := e.receivedAs(uint64(100+i), n, verbs.WCRecvRDMAWithImm, verbs.WCFlagWithImm); wc.Imm != immOf(i) {
					s.Errorf("immediate %#x, want %#x", wc.Imm, immOf(i))
				}
			}
			s.Barrier()
			e.see()
			s.checkLayout(mr, sizes)
		},
	}
}

var rcCases = []Case{
	sendCase("rc/send", verbs.QPTypeRC, 0, false),
	sendCase("rc/send with immediate", verbs.QPTypeRC, SendImm, true),
	writeCase("rc/write", verbs.QPTypeRC, 0, false),
	writeCase("rc/write with immediate", verbs.QPTypeRC, 0, true),
	{
		Name: "rc/read",
		A: func(s *Side) {
			e := s.connect(setup{})
			sizes := messageSizes(verbs.QPTypeRC, e.mtu)
			mr, offs := e.region(sizes, false)
			from := Exchange(s, verbs.RemoteAddr{})
			for i, n := range sizes {
				e.send(read(uint64(i), from.Add(offs[i]), mr.SGE(offs[i], n)))
			}
			for i, n := range sizes {
				want(s, "ByteLen", int(e.sent(uint64(i), verbs.WCRDMARead).ByteLen), n)
			}
			s.checkLayout(mr, sizes)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			mr, _ := e.region(messageSizes(verbs.QPTypeRC, e.mtu), true)
			Exchange(s, mr.Remote(0))
		},
	},
	// A message is sent from several pieces of memory and received into several others. Empty pieces do
	// not count.
	{
		Name: "rc/scatter and gather",
		A: func(s *Side) {
			if !s.threeSGEs() {
				return
			}
			e := s.connect(setup{})
			n := 3 * e.mtu
			mr, back := e.filled(n, 1), e.mr(n+200)
			pieces := []verbs.SGE{mr.SGE(0, 5), mr.SGE(5, 0), mr.SGE(5, n-5)}
			to := Exchange(s, verbs.RemoteAddr{})
			e.send(send(1, pieces...))
			e.sent(1, verbs.WCSend)
			e.send(write(2, to, pieces...))
			e.sent(2, verbs.WCRDMAWrite)
			e.send(read(3, to, back.SGE(n-7, 7), back.SGE(0, n-7)))
			e.sent(3, verbs.WCRDMARead)
			s.same("read back", append(append([]byte(nil), back.Bytes()[n-7:n]...), back.Bytes()[:n-7]...), mr.Bytes())
		},
		B: func(s *Side) {
			if !s.threeSGEs() {
				return
			}
			e := s.connect(setup{})
			n := 3 * e.mtu
			in, mr := e.mr(n+100), e.mr(n)
			paint(in.Bytes())
			e.recv(recv(1, in.SGE(50, e.mtu+1), in.SGE(0, 0), in.SGE(e.mtu+60, 2*e.mtu-1)))
			Exchange(s, mr.Remote(0))
			e.received(1, n)
			b := in.Bytes()
			s.verify("scattered", append(append([]byte(nil), b[50:50+e.mtu+1]...), b[e.mtu+60:3*e.mtu+59]...), 1)
			s.untouched("before", b[:50])
			s.untouched("between", b[51+e.mtu:e.mtu+60])
			s.untouched("behind", b[3*e.mtu+59:])
		},
	},
	// Inline data may change as soon as they are posted. InlineData needs no region.
	{
		Name: "rc/inline",
		A: func(s *Side) {
			n := s.inline()
			e := s.connect(setup{cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 2, MaxInlineData: n}})
			other := s.connect(setup{pd: e.pd})
			to := Exchange(s, verbs.RemoteAddr{})
			data := make([]byte, n)
			fill(data, 1)
			mr := e.filled(n, 2)
			e.send(
				verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: data},
				verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendInline, SGList: []verbs.SGE{mr.SGE(0, n)}},
				verbs.SendWR{ID: 3, Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendInline | verbs.SendSignaled, InlineData: data, Remote: to},
			)
			paint(data)
			paint(mr.Bytes())
			other.send(write(4, to)) // its answer comes behind the messages as a rule, which so have been there, and were refused
			other.sent(4, verbs.WCRDMAWrite)
			s.Barrier()
			e.sent(3, verbs.WCRDMAWrite)
			_, init, err := e.qp.Query()
			s.must(err)
			tooMuch := make([]byte, init.Cap.MaxInlineData+1)
			_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: tooMuch}})
			s.wantErr("more inline data than the QP has room for", err, verbs.ErrLimit)
		},
		B: func(s *Side) {
			s.inline()
			e := s.connect(setup{path: verbs.Path{MinRNRTimer: 1}})
			s.connect(setup{pd: e.pd})
			mr, in := e.mr(64), e.mr(128)
			receives := func() { e.recv(recv(1, in.SGE(0, 64)), recv(2, in.SGE(64, 64)), recv(3)) }
			if s.has(RNR) {
				Exchange(s, mr.Remote(0))
				s.Barrier()
				receives()
			} else {
				receives()
				Exchange(s, mr.Remote(0))
				s.Barrier()
			}
			n := int(e.next(e.rcq).ByteLen)
			e.received(2, n)
			e.receivedAs(3, n, verbs.WCRecvRDMAWithImm, verbs.WCFlagWithImm)
			s.verify("from InlineData", in.Bytes()[:n], 1)
			s.verify("from SGList", in.Bytes()[64:64+n], 2)
			s.verify("written", mr.Bytes()[:n], 1)
			if n == 0 {
				s.Errorf("messages of 0 bytes were sent inline, want some")
			}
		},
	},
	// An empty READ or WRITE touches no memory, so its key and address do not matter (IBTA C9-88).
	{
		Name: "rc/empty messages need no key",
		A: func(s *Side) {
			e := s.connect(setup{})
			nowhere := verbs.RemoteAddr{VA: 0xdead, RKey: 0xbeef}
			s.Barrier()
			e.send(write(1, nowhere), read(2, nowhere), writeImm(3, 7, nowhere))
			e.sent(1, verbs.WCRDMAWrite)
			e.sent(2, verbs.WCRDMARead)
			e.sent(3, verbs.WCRDMAWrite)
		},
		B: func(s *Side) {
			e := s.connect(setup{})
			e.recv(recv(1))
			s.Barrier()
			e.receivedAs(1, 0, verbs.WCRecvRDMAWithImm, verbs.WCFlagWithImm)
		},
	},
	// Two QPs of one device can be connected to each other.
	both("rc/loopback", 0, func(s *Side) {
		pd := s.allocPD()
		x, y := s.pair(pd)
		src, dst := x.filled(5*x.mtu+3, 1), y.mr(5*x.mtu+3)
		y.recv(recv(1))
		x.send(write(1, dst.Remote(0), src.SGE(0, src.Len())), send(2))
		x.sent(1, verbs.WCRDMAWrite)
		x.sent(2, verbs.WCSend)
		y.received(1, 0)
		s.verify("written", dst.Bytes(), 1)
	}),
}

// threeSGEs reports whether both devices take lists of the length that the case needs.
func (s *Side) threeSGEs() bool {
	type most struct{ SGE int }
	a := s.attr()
	n := min(a.MaxSGE, Exchange(s, most{a.MaxSGE}).SGE)
	if n < 4 {
		s.Logf("the devices take %d SGEs in a work request: too few to try lists", n)
	}
	return n >= 4
}

// inline returns how many bytes the case sends inline. It skips the case if a device has no inline data.
func (s *Side) inline() int {
	type most struct{ Inline int }
	own := min(s.attr().MaxInline, mostInline)
	if own == verbs.MaxInlineUnknown {
		own = s.grantedInline(mostInline)
	}
	n := min(own, Exchange(s, most{own}).Inline)
	if n == 0 {
		s.Skipf("a device has no inline data")
	}
	return n
}

// mostInline is the most that the case sends inline, in bytes.
const mostInline = 61

// grantedInline returns how many bytes of inline data, n or fewer, a QP can be created with.
func (s *Side) grantedInline(n int) int {
	pd, cq := s.allocPD(), s.createCQ(1)
	for ; n > 0; n /= 2 {
		qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxInlineData: n}})
		if err == nil {
			s.must(qp.Close())
			return n
		}
		s.wantErr("CreateQP with inline data", err, verbs.ErrLimit, verbs.ErrInvalid, verbs.ErrUnsupported)
	}
	return 0
}
