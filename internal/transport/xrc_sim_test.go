package transport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The memory behind each SRQ in a simulation of XRC.
const (
	xsimStatic  = 0       // the source of READs; never written
	xsimWrite   = 1 << 16 // of each connection, written by its WRITEs
	xsimArea    = 1 << 14
	xsimWords   = 1 << 17 // of each connection one, changed by its atomics
	xsimRecv    = 1 << 18
	xsimSlots   = 12
	xsimRecvLen = 8 << 10
	xsimMemory  = xsimRecv + xsimSlots*xsimRecvLen

	xsimMost = 6000 // bytes in a message
)

// xsim is a simulation of XRC: initiators, each with a target in one domain of SRQs, and a network that loses, repeats and
// reorders packets.
type xsim struct {
	t     *testing.T
	rnd   *rand.Rand
	now   time.Duration
	src   verbs.ProviderMR
	srqs  []*xsimSRQ
	conns []*xsimConn
	air   []xsimPacket
	loss  float64
	twice float64
	mixed time.Duration // how much later than others a packet may come
}

// xsimSRQ is an SRQ with its memory and the receives that are posted to it.
type xsimSRQ struct {
	n      verbs.SRQN
	srq    *queue.SRQ
	cq     *queue.CQ
	mr     verbs.ProviderMR
	posted [xsimSlots]bool
	areas  [][]byte // the contents that the connections' areas must have
	words  []uint64
}

// xsimConn is an initiator, its target and its work.
type xsimConn struct {
	index    int
	a, b     *QP
	user     *queue.XRCUser
	ops      []*xsimOp
	posted   int
	sends    []verbs.WC
	messages []*xsimOp // that take a receive and have not completed one
	flushed  int       // receives
	killed   bool
	unsure   bool    // how much the target has executed
	failed   *xsimOp // that is refused
	causes   []error
	readAt   int
}

// xsimOp is a work request.
type xsimOp struct {
	wr   verbs.SendWR
	to   *xsimSRQ // nil if no SRQ has the number
	data []byte   // that is carried
	want verbs.WCStatus
	read []byte // that a READ or an atomic must have brought
	at   int    // in src
	put  func() // what it does to the expected contents
}

type xsimPacket struct {
	at   time.Duration
	to   *QP
	conn *xsimConn
	data []byte
}

// TestXRCSim runs random programs between initiators and targets of one domain. Each message arrives once and in its
// connection's order, in a receive of the SRQ that it names, and completes in the CQ of that SRQ. Memory changes as the
// requests of each connection say, one after another. What is refused has the right status, and ends its connection
// alone. No receive is lost, but for those of a message under way to a target that was killed, which are flushed.
func TestXRCSim(t *testing.T) { simulateSeeds(t, simulateXRC) }

func simulateXRC(t *testing.T, seed uint64) {
	s := &xsim{t: t, rnd: rand.New(rand.NewPCG(seed, 0x8cc))}
	rate := func(most float64) float64 {
		if s.rnd.IntN(3) == 0 {
			return 0
		}
		return s.rnd.Float64() * most
	}
	s.loss, s.twice, s.mixed = rate(0.05), rate(0.1), time.Duration(rate(100))*time.Microsecond
	keys := mem.NewKeys(100, s.rnd.Uint32)
	register := func(pd *mem.PD, n int) verbs.ProviderMR {
		mr, err := pd.RegMR(verbs.MRAttr{Length: n, Access: allAccess})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mr.Close() })
		for i := range mr.Bytes() {
			mr.Bytes()[i] = byte(i*7 + i>>8)
		}
		return mr
	}
	conns, srqs := 1+s.rnd.IntN(3), 1+s.rnd.IntN(3)
	domain := new(queue.XRCDomain)
	for range srqs {
		pd := keys.NewPD()
		x := &xsimSRQ{n: verbs.SRQN(1 + s.rnd.IntN(1<<24-1)), mr: register(pd, xsimMemory), cq: queue.NewCQ(64, queue.CQHooks{}), words: make([]uint64, conns)}
		x.srq = queue.NewSRQ(pd, verbs.SRQAttr{MaxWR: xsimSlots, MaxSGE: 1}, func() {})
		domain.Add(uint32(x.n), x.srq, x.cq)
		for k := range conns {
			x.areas = append(x.areas, bytes.Clone(x.mr.Bytes()[xsimWrite+k*xsimArea:][:xsimArea]))
			x.words[k] = nativeWord(x.mr.Bytes()[xsimWords+8*k:])
		}
		for i := range xsimSlots {
			fillUntouched(x.slot(i))
		}
		s.srqs = append(s.srqs, x)
	}
	from := keys.NewPD()
	s.src = register(from, 1<<20)
	for k := range conns {
		c := &xsimConn{index: k, user: &queue.XRCUser{Domain: domain}, readAt: 1<<16 + k<<18}
		c.a = New(Config{Type: verbs.QPTypeXRCSend, QPN: verbs.QPN(0x10 + k), Cap: verbs.QPCap{MaxSendWR: 64, MaxSendSGE: 1}, PD: from,
			Receives: queue.NewRecvQueue(from, verbs.QPCap{MaxRecvWR: 1})})
		c.b = New(Config{Type: verbs.QPTypeXRCRecv, QPN: verbs.QPN(0x20 + k), Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}, XRC: c.user, Receives: c.user})
		psn := verbs.PSN(s.rnd.IntN(1 << 24))
		mtu := []verbs.MTU{verbs.MTU256, verbs.MTU1024, verbs.MTU4096}[s.rnd.IntN(3)]
		for q, peer := range map[*QP]verbs.QPN{c.a: c.b.cfg.QPN, c.b: c.a.cfg.QPN} {
			attr := verbs.QPAttr{PathMTU: mtu, SQPSN: psn, RQPSN: psn, DestQPN: peer, Port: 1, Access: remoteAccess, Timeout: 10, RetryCnt: 7,
				RNRRetry: 7, MinRNRTimer: 1, MaxRDAtomic: 4, MaxDestRDAtomic: 4}
			for _, to := range []verbs.QPState{verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS} {
				attr.State = to
				if err := q.Modify(0, &attr, verbs.MaskState|xrcMasks[q.cfg.Type][to]); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.conns = append(s.conns, c)
		s.generate(c, 5+s.rnd.IntN(35), s.rnd.IntN(3) == 0)
	}
	s.run()
	s.check()
}

func fillUntouched(b []byte) {
	for i := range b {
		b[i] = simUntouched
	}
}

func (x *xsimSRQ) slot(i int) []byte { return x.mr.Bytes()[xsimRecv+i*xsimRecvLen:][:xsimRecvLen] }

// generate makes a connection's work. spoiled has one request be refused.
func (s *xsim) generate(c *xsimConn, n int, spoiled bool) {
	bad := -1
	if spoiled {
		bad = s.rnd.IntN(n)
	}
	for i := range n {
		x := s.srqs[s.rnd.IntN(len(s.srqs))]
		length, off := s.rnd.IntN(xsimMost+1), s.rnd.IntN(1<<16-xsimMost)
		o := &xsimOp{to: x, data: s.src.Bytes()[off:][:length]}
		o.wr = verbs.SendWR{ID: uint64(i), SGList: []verbs.SGE{{Addr: s.src.Addr() + uint64(off), Length: uint32(length), LKey: s.src.LKey()}}, RemoteSRQN: x.n}
		if s.rnd.IntN(2) == 0 || i == n-1 {
			o.wr.Flags = verbs.SendSignaled
		}
		brings := func(bytes int) {
			o.at, o.data = c.readAt, nil
			c.readAt += bytes + 16
			o.wr.SGList[0].Addr, o.wr.SGList[0].Length = s.src.Addr()+uint64(o.at), uint32(bytes)
		}
		remote := 0
		switch o.wr.Op = []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpAtomicFetchAdd}[s.rnd.IntN(6)]; o.wr.Op {
		case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
			at := s.rnd.IntN(xsimArea - xsimMost)
			remote = xsimWrite + c.index*xsimArea + at
			o.put = func() { copy(x.areas[c.index][at:], o.data) }
		case verbs.OpRDMARead:
			brings(length)
			remote = xsimStatic + s.rnd.IntN(1<<16-xsimMost)
			o.read = bytes.Clone(x.mr.Bytes()[remote:][:length])
		case verbs.OpAtomicFetchAdd:
			brings(8)
			remote = xsimWords + 8*c.index
			o.wr.CompareAdd = s.rnd.Uint64()
			o.put = func() {
				o.read = make([]byte, 8)
				copy(o.read, wordBytes(x.words[c.index]))
				x.words[c.index] += o.wr.CompareAdd
			}
		}
		o.wr.Imm = s.rnd.Uint32()
		if remote != 0 || o.wr.Op == verbs.OpRDMARead {
			o.wr.Remote = verbs.RemoteAddr{VA: x.mr.Addr() + uint64(remote), RKey: x.mr.RKey()}
		}
		if i == bad {
			s.spoil(o)
			if o.want != verbs.WCSuccess {
				c.failed = o
			}
		}
		c.ops = append(c.ops, o)
	}
}

func wordBytes(w uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(w >> (8 * i))
	}
	if nativeWord(b) != w {
		slices.Reverse(b)
	}
	return b
}

// spoil has a request name an SRQ that the domain does not have, or memory of another SRQ's protection domain.
func (s *xsim) spoil(o *xsimOp) {
	other := s.srqs[s.rnd.IntN(len(s.srqs))]
	oneSided := o.wr.Remote != verbs.RemoteAddr{}
	switch {
	case s.rnd.IntN(2) == 0 || !oneSided:
		for slices.ContainsFunc(s.srqs, func(x *xsimSRQ) bool { return x.n == o.wr.RemoteSRQN }) {
			o.wr.RemoteSRQN = verbs.SRQN(1 + s.rnd.IntN(1<<24-1))
		}
		o.to, o.want = nil, verbs.WCRemInvReqErr
	case other != o.to && len(o.data)+len(o.read) > 0:
		o.to, o.wr.RemoteSRQN, o.want = other, other.n, verbs.WCRemAccessErr
	}
}

func (o *xsimOp) takesReceive() bool {
	return o.wr.Op == verbs.OpSend || o.wr.Op == verbs.OpSendWithImm || o.wr.Op == verbs.OpRDMAWriteWithImm
}

// run runs until no packet is under way and all work is complete.
func (s *xsim) run() {
	buf := make([]byte, MaxDatagram)
	nextAct := time.Duration(0)
	killer := (*xsimConn)(nil)
	if s.rnd.IntN(4) == 0 {
		killer = s.conns[s.rnd.IntN(len(s.conns))]
	}
	for s.now < simLongest {
		if s.now >= nextAct {
			s.act()
			nextAct = s.now + time.Duration(1+s.rnd.IntN(40))*time.Microsecond
			if killer != nil && killer.posted > len(killer.ops)/2 && s.rnd.IntN(20) == 0 {
				s.kill(killer)
				killer = nil
			}
		}
		for _, c := range s.conns {
			for _, q := range []*QP{c.a, c.b} {
				for n := q.Transmit(s.now, buf); n > 0; n = q.Transmit(s.now, buf) {
					s.launch(c, q, buf[:n])
				}
			}
			s.collect(c)
		}
		next := simLongest
		idle := len(s.air) == 0
		for _, p := range s.air {
			next = min(next, p.at)
		}
		for _, c := range s.conns {
			idle = idle && c.posted == len(c.ops) && c.finished()
			next = min(next, c.a.NextTimeout(), c.b.NextTimeout())
		}
		if idle {
			return
		}
		if !s.resting() {
			next = min(next, nextAct)
		}
		s.now = max(s.now+1, next)
		s.arrive()
		for _, c := range s.conns {
			for _, q := range []*QP{c.a, c.b} {
				if q.NextTimeout() <= s.now {
					q.HandleTimeout(s.now)
				}
			}
			s.collect(c)
		}
	}
	s.t.Errorf("the work has not ended after %v", simLongest)
}

// resting reports whether the programs have nothing to post.
func (s *xsim) resting() bool {
	for _, c := range s.conns {
		if c.posted < len(c.ops) {
			return false
		}
	}
	for _, x := range s.srqs {
		if slices.Contains(x.posted[:], false) {
			return false
		}
	}
	return true
}

// act posts some work requests and some receives.
func (s *xsim) act() {
	for _, c := range s.conns {
		for c.posted < len(c.ops) && s.rnd.IntN(3) > 0 {
			o := c.ops[c.posted]
			if err := c.a.Post(&o.wr); err != nil {
				s.t.Fatalf("post %d: %v", o.wr.ID, err)
			}
			c.posted++
			if o.takesReceive() && o.to != nil {
				c.messages = append(c.messages, o)
			}
		}
	}
	for i, x := range s.srqs {
		for slot, posted := range x.posted {
			if posted || s.rnd.IntN(4) > 0 {
				continue
			}
			wr := verbs.RecvWR{ID: uint64(i<<8 | slot), SGList: []verbs.SGE{{Addr: x.mr.Addr() + uint64(xsimRecv+slot*xsimRecvLen), Length: xsimRecvLen, LKey: x.mr.LKey()}}}
			if _, err := x.srq.PostRecv([]verbs.RecvWR{wr}); err != nil {
				s.t.Fatalf("SRQ %v: receive %d: %v", x.n, slot, err)
			}
			x.posted[slot] = true
		}
	}
}

// kill takes a target to ERR.
func (s *xsim) kill(c *xsimConn) {
	c.killed = true
	if err := c.b.Modify(s.now, &verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState); err != nil {
		s.t.Fatal(err)
	}
	s.collect(c)
}

// launch hands a packet to the network.
func (s *xsim) launch(c *xsimConn, from *QP, data []byte) {
	to := c.a
	if from == c.a {
		to = c.b
	}
	copies := 1
	if s.rnd.Float64() < s.twice {
		copies = 2
	}
	for range copies {
		if s.rnd.Float64() < s.loss {
			continue
		}
		at := s.now + 3*time.Microsecond
		if s.mixed > 0 && s.rnd.IntN(8) == 0 {
			at += time.Duration(s.rnd.Int64N(int64(s.mixed)))
		}
		s.air = append(s.air, xsimPacket{at, to, c, bytes.Clone(data)})
	}
}

// arrive delivers the packets that are due, in the order of their times.
func (s *xsim) arrive() {
	slices.SortStableFunc(s.air, func(a, b xsimPacket) int { return int(a.at - b.at) })
	for len(s.air) > 0 && s.air[0].at <= s.now {
		p := s.air[0]
		s.air = s.air[1:]
		var w wire.Packet
		if err := w.Decode(p.data); err != nil {
			s.t.Fatal(err)
		}
		p.to.HandlePacket(s.now, &w, 0)
		s.collect(p.conn)
	}
}

// collect takes the completions of a connection, and checks those of receives.
func (s *xsim) collect(c *xsimConn) {
	for _, d := range c.a.Completions() {
		c.sends = append(c.sends, d.WC)
	}
	for _, d := range c.b.Completions() {
		s.received(c, &d.WC, c.user.CQ())
	}
	for _, e := range c.b.Events() {
		c.causes = append(c.causes, e.Cause)
	}
}

// received checks the completion of a receive in a CQ.
func (s *xsim) received(c *xsimConn, wc *verbs.WC, cq *queue.CQ) {
	x, slot := s.srqs[wc.ID>>8], int(wc.ID&0xff)
	if cq != x.cq || !x.posted[slot] {
		s.t.Errorf("connection %d: receive %d of SRQ %v completes in the CQ of another, or was not posted (%v)", c.index, slot, x.n, x.posted[slot])
		return
	}
	x.posted[slot] = false
	defer fillUntouched(x.slot(slot))
	if wc.Status == verbs.WCFlushErr && (c.killed || c.failed != nil) {
		if c.flushed++; c.flushed > 1 {
			s.t.Errorf("connection %d: %d receives are flushed, want that of a message under way", c.index, c.flushed)
		}
		return
	}
	if len(c.messages) == 0 {
		s.t.Errorf("connection %d: receive %d completes, and no message is under way", c.index, slot)
		return
	}
	o := c.messages[0]
	c.messages = c.messages[1:]
	op, data := verbs.WCRecv, o.data
	if o.wr.Op == verbs.OpRDMAWriteWithImm {
		op, data = verbs.WCRecvRDMAWithImm, nil
	}
	withImm := o.wr.Op != verbs.OpSend
	switch {
	case x != o.to:
		s.t.Errorf("connection %d: work request %d to SRQ %v takes a receive of SRQ %v", c.index, o.wr.ID, o.wr.RemoteSRQN, x.n)
	case wc.Status != verbs.WCSuccess || wc.Op != op || int(wc.ByteLen) != len(o.data) || withImm && wc.Imm != o.wr.Imm:
		s.t.Errorf("connection %d: work request %d, a %v of %d bytes with %#x: completion %+v", c.index, o.wr.ID, o.wr.Op, len(o.data), o.wr.Imm, *wc)
	case !bytes.Equal(x.slot(slot)[:len(data)], data) || bytes.Count(x.slot(slot)[len(data):], []byte{simUntouched}) != xsimRecvLen-len(data):
		s.t.Errorf("connection %d: work request %d: the receive has other bytes than the %d that were sent, or more", c.index, o.wr.ID, len(data))
	}
}

// finished reports whether the last work request is complete.
func (c *xsimConn) finished() bool {
	return len(c.sends) > 0 && c.sends[len(c.sends)-1].ID == c.ops[len(c.ops)-1].wr.ID
}

// check checks what the run has left.
func (s *xsim) check() {
	for _, c := range s.conns {
		s.checkSends(c)
	}
	for _, x := range s.srqs {
		left := 0
		for slot, posted := range x.posted {
			if posted {
				left++
			}
			if bytes.Count(x.slot(slot), []byte{simUntouched}) != xsimRecvLen {
				s.t.Errorf("SRQ %v: receive %d is written and did not complete", x.n, slot)
			}
		}
		// As many are in the queue as did not complete: no more fit than have.
		wr := []verbs.RecvWR{{}}
		for i := left; i < xsimSlots; i++ {
			if _, err := x.srq.PostRecv(wr); err != nil {
				s.t.Errorf("SRQ %v: %d receives did not complete, and more than that are in the queue of %d: %v", x.n, left, xsimSlots, err)
				break
			}
		}
		if _, err := x.srq.PostRecv(wr); !errors.Is(err, verbs.ErrQueueFull) {
			s.t.Errorf("SRQ %v: fewer than the %d receives that did not complete are in the queue: %v", x.n, left, err)
		}
		for _, c := range s.conns {
			if c.unsure {
				continue
			}
			k := c.index
			if !bytes.Equal(x.mr.Bytes()[xsimWrite+k*xsimArea:][:xsimArea], x.areas[k]) {
				s.t.Errorf("SRQ %v: the memory that connection %d writes is not what its WRITEs say", x.n, k)
			}
			if got := nativeWord(x.mr.Bytes()[xsimWords+8*k:]); got != x.words[k] {
				s.t.Errorf("SRQ %v: the word of connection %d is %#x, want %#x", x.n, k, got, x.words[k])
			}
		}
	}
}

// mayBeSilent reports whether a work request may get no answer: of a target that was killed or that has refused a later
// request, after answers were lost, or a NAK came before a response that it follows. Such a target answers nothing any more.
func (c *xsimConn) mayBeSilent(s *xsim, o *xsimOp) bool {
	return c.killed || c.failed != nil && s.loss+float64(s.mixed) > 0 && o.wr.ID <= c.failed.wr.ID
}

// checkSends checks the completions of an initiator, and what it has read.
func (s *xsim) checkSends(c *xsimConn) {
	failed, sends := false, c.sends
	for _, o := range c.ops {
		want := o.want
		if failed {
			want = verbs.WCFlushErr
		}
		if o.wr.Flags&verbs.SendSignaled == 0 && want == verbs.WCSuccess && !(len(sends) > 0 && sends[0].ID == o.wr.ID && sends[0].Status != verbs.WCSuccess) {
			s.did(c, o)
			continue
		}
		if len(sends) == 0 || sends[0].ID != o.wr.ID {
			s.t.Errorf("connection %d: work request %d has no completion, or not in its turn: %+v", c.index, o.wr.ID, sends)
			return
		}
		got := sends[0].Status
		sends = sends[1:]
		if got == verbs.WCRetryExceeded && !failed && c.mayBeSilent(s, o) {
			want, c.unsure = got, true
		}
		if got != want {
			s.t.Errorf("connection %d: work request %d, %v: %v, want %v (target: %v)", c.index, o.wr.ID, o.wr.Op, got, want, c.causes)
			return
		}
		failed = failed || got != verbs.WCSuccess
		if !failed {
			s.did(c, o)
		}
	}
	if !failed && !c.killed && (len(c.messages) > 0 || c.b.State() != verbs.QPStateRTS) {
		s.t.Errorf("connection %d: %d messages are acknowledged and have not arrived; the target is in %v", c.index, len(c.messages), c.b.State())
	}
	if len(sends) > 0 {
		s.t.Errorf("connection %d: %d completions too many", c.index, len(sends))
	}
}

// did takes note of what a successful request has done.
func (s *xsim) did(c *xsimConn, o *xsimOp) {
	if o.put != nil {
		o.put()
	}
	if got := s.src.Bytes()[o.at:][:len(o.read)]; o.read != nil && !bytes.Equal(got, o.read) {
		s.t.Errorf("connection %d: work request %d, %v, has brought other bytes than SRQ %v's memory has", c.index, o.wr.ID, o.wr.Op, o.to.n)
	}
}
