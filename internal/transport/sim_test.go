package transport

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var (
	seedsFlag = flag.Int("seeds", 60, "how many random simulations to run")
	seedFlag  = flag.Int("seed", -1, "run the simulation of this seed only")
)

// Layout of the memory of both ends of a simulation. Only the peer's WRITEs change the write area, and
// only its atomics the words.
const (
	simStatic    = 0 // sources of SENDs, WRITEs and some READs; never written
	simStaticLen = 1 << 16
	simWrite     = 1 << 16
	simWriteLen  = 3 << 13
	simWords     = 1 << 17
	simWordCount = 4
	simRecv      = 1 << 18 // receive buffers
	simRecvSlots = 24
	simRecvLen   = 10 << 10
	simRead      = 1 << 19 // targets of READs and atomics, one after the other
	simGuard     = 16      // bytes between them

	simRemoteKey = 2 * windowKey // keys of the windows that the peer invalidates

	simMaxMessage = 9 << 10
	simUntouched  = 0xee
	simLongest    = 60 * time.Second
)

// TestSim runs random programs between two QPs over a network that loses, repeats and reorders packets. It checks all
// invariants: see oracle_test.go.
func TestSim(t *testing.T) { simulateSeeds(t, simulate) }

func simulateSeeds(t *testing.T, simulate func(t *testing.T, seed uint64)) {
	if *seedFlag >= 0 {
		simulate(t, uint64(*seedFlag))
		return
	}
	name := t.Name()
	n := *seedsFlag
	if testing.Short() {
		n = min(n, 15)
	}
	failures := 0
	for seed := range n {
		if !t.Run("", func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("replay with: go test ./internal/transport -run %s -seed %d", name, seed)
				}
			}()
			simulate(t, uint64(seed))
		}) {
			if failures++; failures >= 5 {
				return
			}
		}
	}
}

// simKinds are the operations of each type of QP.
var simKinds = map[verbs.QPType][]verbs.Opcode{
	verbs.QPTypeRC: {verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMARead,
		verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd, verbs.OpSendWithInv, verbs.OpLocalInv, verbs.OpBindMW, verbs.OpFlush, verbs.OpAtomicWrite},
	verbs.QPTypeUC: {verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm, verbs.OpLocalInv, verbs.OpBindMW},
	verbs.QPTypeUD: {verbs.OpSend, verbs.OpSendWithImm},
}

// sim is one simulation.
type sim struct {
	*pair
	t      *testing.T
	rnd    *rand.Rand
	a, b   *program
	faults struct{ loss, duplicate, reorder float64 }
	slow   float64 // how unlikely the programs are to do something at a step
	sqd    bool    // drain the send queues now and then
	fatal  bool    // retries are few, so that a QP may fail
	calm   bool    // no faults and no timeouts; receives of UC and UD in time
	kill   bool    // one of the QPs goes to ERR on the way
	files  bool    // the memory is that of a file, and FLUSHes to storage take a while
	last   map[*node]time.Duration
}

// program is the work of one end: work requests to post, and receives for the peer's.
type program struct {
	*node
	kinds   []verbs.Opcode // of the program's work requests
	ops     []*simOp
	posted  int
	seen    int // sends completions looked at
	left    int // receives to post
	recvID  uint64
	taken   int // receive completions looked at
	depth   int
	events  int // looked at
	killed  bool
	stores  int          // steps that the FLUSH to storage under way has taken
	matched int          // UC and UD: behind the peer's message that was received last
	bound   []verbs.RKey // of the windows, those that are bound after the work requests so far

	readNext int // free place among the READ targets
}

// simOp is a work request, with its fate as far as known.
type simOp struct {
	wr     verbs.SendWR
	data   []byte // SENDs and WRITEs
	off    int    // in the peer's memory
	length int
	target int // of READs and atomics
	done   bool
	status verbs.WCStatus
	err    error
	window verbs.RKey     // the label of the window that is bound or invalidated
	bad    verbs.WCStatus // the status of a spoiled one, and of the receive that it takes
	badAt  verbs.WCStatus
}

// spoil makes a work request one that must fail.
func (x *program) spoil(s *sim, o *simOp) {
	bad := verbs.SGE{Addr: 1, Length: uint32(o.length), LKey: 1}
	switch s.rnd.IntN(4) {
	case 0:
		if o.length == 0 || o.local() || o.wr.Op == verbs.OpFlush {
			return
		}
		o.wr.SGList = []verbs.SGE{bad}
		o.wr.Flags &^= verbs.SendInline
		o.bad = verbs.WCLocProtErr
	case 1:
		if o.sends() || o.local() || o.length == 0 {
			return
		}
		o.wr.Remote.RKey = 1
		o.bad = verbs.WCRemAccessErr
	case 2:
		if !o.sends() {
			return
		}
		o.length = simRecvLen + 1 + s.rnd.IntN(simRecvLen)
		o.data = x.mem.data[:o.length]
		o.wr.SGList = split(x.mem, 0, o.length, 3)
		o.wr.Flags &^= verbs.SendInline
		o.bad, o.badAt = verbs.WCRemInvReqErr, verbs.WCLocLenErr
	case 3:
		switch o.wr.Op {
		case verbs.OpSendWithInv:
			o.wr.InvalidateRKey, o.window = 1, 1
			o.bad, o.badAt = verbs.WCRetryExceeded, verbs.WCRemInvReqErr // there is no NAK
		case verbs.OpBindMW:
			o.wr.Bind.RKey = 1
			o.bad = verbs.WCMWBindErr
		case verbs.OpLocalInv:
			o.wr.InvalidateRKey = 1
			o.bad = verbs.WCMWBindErr
		}
	}
}

// sends reports whether o is a SEND in any form.
func (o *simOp) sends() bool {
	return o.wr.Op == verbs.OpSend || o.wr.Op == verbs.OpSendWithImm || o.wr.Op == verbs.OpSendWithInv
}

func (o *simOp) takesRecv() bool { return o.sends() || o.wr.Op == verbs.OpRDMAWriteWithImm }

func (o *simOp) local() bool { return o.wr.Op == verbs.OpLocalInv || o.wr.Op == verbs.OpBindMW }

func (o *simOp) writes() bool {
	return o.wr.Op == verbs.OpRDMAWrite || o.wr.Op == verbs.OpRDMAWriteWithImm
}

func (o *simOp) atomic() bool {
	return o.wr.Op == verbs.OpAtomicCmpSwap || o.wr.Op == verbs.OpAtomicFetchAdd
}

// changesWord reports whether o is an atomic or an ATOMIC WRITE.
func (o *simOp) changesWord() bool { return o.atomic() || o.wr.Op == verbs.OpAtomicWrite }

func simulate(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0x5eed))
	s := &sim{t: t, rnd: rnd, last: map[*node]time.Duration{}}
	pick := func(vs ...int) int { return vs[rnd.IntN(len(vs))] }
	set := setup{ // the two ends differ in PSN only
		mtu: allMTUs[rnd.IntN(len(allMTUs))], psnA: s.psn(), psnB: s.psn(),
		cap:     verbs.QPCap{MaxSendWR: 1 << (1 + rnd.IntN(6)), MaxSendSGE: 32, MaxInlineData: 256},
		timeout: uint8(4 + rnd.IntN(7)), rnrTimer: uint8(1 + rnd.IntN(10)), rd: pick(1, 2, 4, 16), turn: pick(0, 1, 3, 128), signalAll: rnd.IntN(8) == 0, selective: rnd.IntN(2) == 0, lends: rnd.IntN(3) == 0, fast: rnd.IntN(3) == 0,
	}
	if s.fatal = rnd.IntN(8) == 0; s.fatal {
		set.retry, set.noRetry = uint8(rnd.IntN(3)), true
		set.rnrRetry, set.rnrLimit = uint8(pick(0, 1, 3, 7)), true
	}
	s.faults.loss, s.faults.duplicate, s.faults.reorder = s.rate(), s.rate(), s.rate()
	if s.calm = rnd.IntN(6) == 0 && !s.fatal; s.calm { // then nothing must ever wait for a timeout
		s.faults.loss, s.faults.duplicate, s.faults.reorder = 0, 0, 0
		set.timeout, set.noTimeout = 0, true
	}
	s.pair = newPair(t, set)
	s.pair.single = rnd.IntN(2) == 0
	if s.files = canStore && !set.lends && rnd.IntN(3) == 0; s.files {
		for _, e := range []*node{s.pair.a, s.pair.b} {
			e.storeInFile()
			e.disk = !s.calm && !s.fatal
		}
	}
	s.slow = rnd.Float64() * 0.9
	s.sqd = rnd.IntN(6) == 0
	s.kill = rnd.IntN(12) == 0 && !s.calm
	s.pair.route = s.route
	s.a, s.b = s.program(s.pair.a, set), s.program(s.pair.b, set)
	for _, x := range []*program{s.a, s.b} {
		clear(x.mem.data[simWords:][:8*simWordCount]) // so that some compares succeed
		x.credit = rnd.IntN(2) == 0
		x.generate(s, pick(0, 1, 3, 20, 60, 60, 60))
		if n := len(x.ops); n > 0 && rnd.IntN(5) == 0 && !s.calm {
			x.spoil(s, x.ops[rnd.IntN(n)])
		}
	}
	s.a.left, s.b.left = s.b.recvsNeeded(), s.a.recvsNeeded()
	before := [2][]byte{clone(s.a.mem.data), clone(s.b.mem.data)}
	s.run()
	s.check(s.a, s.b, before[0], before[1])
	s.check(s.b, s.a, before[1], before[0])
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

func (s *sim) psn() verbs.PSN {
	if s.rnd.IntN(2) == 0 {
		return verbs.PSN(1<<24 - 1 - s.rnd.IntN(300))
	}
	return verbs.PSN(s.rnd.IntN(1 << 24))
}

func (s *sim) rate() float64 {
	if s.rnd.IntN(3) == 0 {
		return 0
	}
	return s.rnd.Float64() * 0.1
}

func (s *sim) program(e *node, set setup) *program {
	return &program{node: e, kinds: simKinds[e.qp.cfg.Type], depth: set.cap.MaxSendWR, readNext: simRead}
}

// route loses, repeats and reorders. Packets that are not reordered keep their order.
func (s *sim) route(from *node, n int, p *wire.Packet) []delay {
	at := max(s.now+testDelay+time.Duration(s.rnd.IntN(2000)), s.last[from]+100)
	s.last[from] = at
	var ds []delay
	for {
		d := at - s.now
		if s.rnd.Float64() < s.faults.reorder {
			d += time.Duration(s.rnd.ExpFloat64() * float64(20*us))
			if s.rnd.IntN(20) == 0 {
				d += time.Duration(s.rnd.IntN(int(5 * ms)))
			}
		}
		if s.rnd.Float64() >= s.faults.loss {
			ds = append(ds, d)
		}
		if s.rnd.Float64() >= s.faults.duplicate {
			return ds
		}
	}
}

// generate makes n work requests.
func (x *program) generate(s *sim, n int) {
	r := s.rnd
	for i := range n {
		o := &simOp{wr: verbs.SendWR{ID: uint64(i), Op: x.kinds[r.IntN(len(x.kinds))], Imm: r.Uint32()}, length: x.length(s)}
		wr := &o.wr
		if r.IntN(10) == 0 {
			switch wr.Op {
			case verbs.OpRDMARead:
				o.length = r.IntN(simStaticLen * 2 / 3)
			case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
				o.length = r.IntN(simWriteLen)
			}
		}
		if r.IntN(3) == 0 || (i+1)%max(x.depth/2, 1) == 0 || i == n-1 {
			wr.Flags |= verbs.SendSignaled
		}
		if r.IntN(6) == 0 {
			wr.Flags |= verbs.SendFence
		}
		if r.IntN(3) == 0 {
			wr.Flags |= verbs.SendSolicited
		}
		switch {
		case o.atomic():
			o.length, o.off = 8, simWords+8*r.IntN(simWordCount)
			wr.Swap, wr.CompareAdd = r.Uint64(), uint64(r.IntN(3))
			if r.IntN(2) == 0 {
				wr.Swap = uint64(r.IntN(3)) // so that compares succeed at times
			}
			if wr.Op == verbs.OpAtomicFetchAdd {
				wr.Swap, wr.CompareAdd = 0, wr.Swap
			}
		case wr.Op == verbs.OpRDMARead && (o.length > simWriteLen || r.IntN(2) == 0):
			o.off = simStatic + r.IntN(simStaticLen-o.length)
		case wr.Op == verbs.OpAtomicWrite:
			o.length, o.off = 8, simWords+8*r.IntN(simWordCount)
		default:
			o.off = simWrite + r.IntN(simWriteLen-o.length+1)
		}
		wr.Remote = x.peer.mem.remote(o.off)
		if o.local() {
			x.generateLocal(s, o)
			continue
		}
		if wr.Op == verbs.OpFlush {
			wr.Flush = verbs.Flush{Length: uint32(o.length), Placement: verbs.FlushGlobal, Selectivity: verbs.FlushSelectivity(r.IntN(2))}
			if s.files && r.IntN(2) == 0 {
				wr.Flush.Placement |= verbs.FlushPersistent
			}
			x.ops = append(x.ops, o)
			continue
		}
		if wr.Op == verbs.OpSendWithInv {
			o.window = simRemoteKey + verbs.RKey(i)
			wr.InvalidateRKey = o.window
			x.peer.bindWindow(o.window)
		}
		if o.atomic() || wr.Op == verbs.OpRDMARead {
			if x.readNext+o.length+simGuard > memSize {
				o.length = min(o.length, 8)
			}
			o.target = x.readNext + simGuard
			x.readNext = o.target + o.length
			wr.SGList = split(x.mem, o.target, o.length, r.IntN(1000))
		} else {
			from := r.IntN(simStaticLen - o.length)
			o.data = x.mem.data[from:][:o.length]
			wr.SGList = split(x.mem, from, o.length, r.IntN(1000))
			wr.RemoteQPN, wr.RemoteQKey = x.peer.qp.cfg.QPN, testQKey
			if o.length <= 256 && r.IntN(2) == 0 {
				wr.Flags |= verbs.SendInline
			}
		}
		x.ops = append(x.ops, o)
	}
}

// generateLocal makes o bind a window, or invalidate one that was bound before.
func (x *program) generateLocal(s *sim, o *simOp) {
	o.off, o.length = 0, 0
	if o.wr.Op == verbs.OpLocalInv && len(x.bound) > 0 {
		o.window, x.bound = x.bound[0], x.bound[1:]
		o.wr.InvalidateRKey = o.window
	} else {
		o.window = windowKey + verbs.RKey(o.wr.ID)
		o.wr.Op, o.wr.Bind = verbs.OpBindMW, &verbs.MWBind{RKey: o.window}
		x.bound = append(x.bound, o.window)
	}
	x.ops = append(x.ops, o)
}

func (x *program) length(s *sim) int {
	if x.qp.cfg.Type == verbs.QPTypeUD {
		return s.rnd.IntN(1 + []int{2, 100, 4096}[s.rnd.IntN(3)])
	}
	mtu := x.qp.attr.PathMTU.Bytes()
	switch s.rnd.IntN(6) {
	case 0:
		return s.rnd.IntN(3)
	case 1:
		return min(simMaxMessage, max(0, mtu*(1+s.rnd.IntN(3))-1+s.rnd.IntN(3)))
	case 2:
		return s.rnd.IntN(100)
	}
	return s.rnd.IntN(simMaxMessage)
}

func (x *program) recvsNeeded() int {
	n := 0
	for _, o := range x.ops {
		if o.takesRecv() {
			n++
		}
	}
	return n
}

// run runs both programs to their end, and the network until it is quiet.
func (s *sim) run() {
	quiet := 0
	for steps := 0; ; steps++ {
		s.act(s.a, quiet > 0)
		s.act(s.b, quiet > 0)
		moved := s.step(simLongest)
		s.look(s.a)
		s.look(s.b)
		if moved {
			quiet = 0
		} else if quiet++; quiet > 200 {
			break // also with the programs acting at every step, nothing happens any more
		}
		if s.now > simLongest-time.Second || steps > roundsLimit {
			s.t.Fatalf("no end after %v and %d steps: %d and %d work requests are posted, want %d and %d",
				s.now, steps, s.a.posted, s.b.posted, len(s.a.ops), len(s.b.ops))
		}
	}
}

// act lets a program take the steps that are allowed at this time, or that it must take when it is forced.
func (s *sim) act(x *program, force bool) {
	if len(x.flushings) > 0 {
		if x.stores++; force || x.stores > 3 || s.rnd.IntN(4) == 0 { // before the peer's retries end
			x.stored()
			x.stores = 0
		}
	}
	if !force && s.rnd.Float64() < s.slow {
		return
	}
	if s.kill && s.rnd.IntN(100) == 0 {
		s.kill, x.killed = false, true
		s.state(x.node, verbs.QPStateErr)
	}
	for x.left > 0 && x.qp.State() != verbs.QPStateErr && x.waiting() < simRecvSlots-1 && (force || s.rnd.IntN(3) > 0) {
		x.postBuffer(s)
	}
	if n := len(x.sends); n > 0 && (force || s.rnd.IntN(2) == 0) {
		x.polled(n)
	}
	for x.posted < len(x.ops) && x.qp.State() != verbs.QPStateErr && x.qp.sq.full() == nil && (force || s.rnd.IntN(8) > 0) {
		s.post(x.node, x.ops[x.posted].wr)
		x.posted++
	}
	switch {
	case x.qp.State() == verbs.QPStateSQD && len(x.node.events) > x.events:
		if e := x.node.events[len(x.node.events)-1]; e != verbs.EventSQDrained {
			s.t.Errorf("%s: event %v, want SQ_DRAINED", x.name, e)
		}
		x.events = len(x.node.events)
		s.state(x.node, verbs.QPStateRTS)
	case x.qp.State() == verbs.QPStateSQE && s.rnd.IntN(4) == 0:
		s.state(x.node, verbs.QPStateRTS)
	case x.qp.State() == verbs.QPStateRTS && s.sqd && s.rnd.IntN(50) == 0:
		s.modify(x.node, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	}
}

func (x *program) postBuffer(s *sim) {
	off := simRecv + int(x.recvID%simRecvSlots)*simRecvLen
	b := x.mem.data[off:][:simRecvLen]
	for i := range b {
		b[i] = simUntouched
	}
	x.postRecv(x.recvID, split(x.mem, off, simRecvLen, s.rnd.IntN(1000))...)
	x.recvID++
	x.left--
}
