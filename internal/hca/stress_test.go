package hca

import (
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestStress: several goroutines do everything at once with one connection, errors included. Nothing
// may hang, race or panic. A work request completes once, in order and with a status that something has
// caused. A work request that succeeded has moved its bytes. In the end nothing is left.
func TestStress(t *testing.T) {
	const seed, workers = 1, 4
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	net := sim.New(sim.Config{Seed: seed, Loss: 0.01, Duplicate: 0.01, Reorder: 0.02})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	var total stressTotal
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, w))
			for range rounds {
				newStress(t, a, b, rng, &total).run()
			}
		})
	}
	wg.Wait()
	for _, d := range []*verbs.Device{a, b} {
		h := impl(d)
		for what, n := range map[string]int{
			"QPs": int(h.qpCount.Load()), "regions": h.Keys.Len(), "CQs": int(h.CQs.Load()), "PDs": int(h.PDs.Load()), "SRQs": int(h.SRQs.Load()), "AHs": int(h.ahs.Load()),
		} {
			if n != 0 {
				t.Errorf("%s: %d %s are left, want none", d.Name(), n, what)
			}
		}
	}
	// Else the checks above had nothing to look at.
	for what, n := range map[string]*atomic.Int64{"WRITEs": &total.writes, "READs": &total.reads, "SENDs": &total.sends, "receives": &total.received, "failures": &total.failed} {
		if n.Load() == 0 {
			t.Errorf("no %s completed with all seeds, want some", what)
		}
	}
}

// stressTotal counts work requests that completed with success, and others.
type stressTotal struct{ writes, reads, sends, received, failed atomic.Int64 }

// Layout of the memory. Byte i of the source is stressByte(i), and so is byte i of each place that
// something was moved to. A byte that nothing was moved to is 0. So it does not matter who moved the bytes.
const (
	stressArea  = 20_000     // bytes
	stressBack  = stressArea // in x's memory, behind the source: where READs bring what WRITEs have left in y's
	stressInbox = stressArea // in y's memory, behind the target of WRITEs: where SENDs go
)

func stressByte(i int) byte { return byte(i%251) + 1 }

// stressUsers is how many goroutines use a connection. The ID of a work request is its user's number
// and a count.
const stressUsers = 3

// stress is one connection with its results.
type stress struct {
	t     testing.TB
	rng   *rand.Rand
	total *stressTotal
	x, y  *end

	src, dst           *verbs.MR
	srcBytes, dstBytes []byte
	mapped             bool // the memory is gone when its region is closed

	// Each is set before the deed, so that no effect comes first.
	killed, reset, srcClosed, dstClosed atomic.Bool

	mu          sync.Mutex
	ops         map[uint64]*stressOp // posted to x
	recvs       map[uint64]bool      // posted to y; true once complete
	newest      [2][stressUsers]uint64
	wrote       int // the longest WRITE that succeeded
	readBack    int // how much of what WRITEs brought a READ must have brought back
	received    int // the longest message that was received
	sendsDone   int // that succeeded
	sendsPosted int
	recvsDone   int // that succeeded
	longest     map[verbs.Opcode]int
}

// stressOp is a work request of x.
type stressOp struct {
	op     verbs.Opcode
	length int
	back   int // READ: how much of it the same user's WRITEs before it have brought
	done   bool
}

func newStress(t testing.TB, a, b *verbs.Device, rng *rand.Rand, total *stressTotal) *stress {
	s := &stress{t: t, rng: rng, total: total, mapped: rng.IntN(2) == 0,
		ops: map[uint64]*stressOp{}, recvs: map[uint64]bool{}, longest: map[verbs.Opcode]int{}}
	// An end that gives up must have a cause that the test knows, not a machine that is busy elsewhere.
	s.x, s.y = connect(t, a, b, options{timeout: 17}) // 0.5 s, and 7 retries
	if s.mapped {
		// An end that uses a closed region would fault.
		s.src, s.dst = s.x.mr(2*stressArea), s.y.mr(2*stressArea)
		s.srcBytes, s.dstBytes = s.src.Bytes(), s.dst.Bytes()
	} else {
		// The race detector watches this memory, and the test can always look at it in the end.
		s.srcBytes, s.dstBytes = make([]byte, 2*stressArea), make([]byte, 2*stressArea)
		var err error
		s.src, err = s.x.pd.RegMR(s.srcBytes, everything)
		s.x.must(err)
		s.dst, err = s.y.pd.RegMR(s.dstBytes, everything)
		s.y.must(err)
	}
	for i := range stressArea {
		s.srcBytes[i] = stressByte(i)
	}
	return s
}

// run sets the users going, closes everything while they are at it or when they are done, and checks
// what is left.
func (s *stress) run() {
	var users sync.WaitGroup
	for u := range uint64(stressUsers) {
		rng := rand.New(rand.NewPCG(s.rng.Uint64(), 0))
		users.Go(func() { (&stressUser{stress: s, number: u, rng: rng}).run() })
	}
	waited := s.rng.IntN(2) == 0
	if waited {
		users.Wait()
	}
	regions := s.rng.IntN(3) // that are closed while packets use them
	if regions > 0 {
		s.dstClosed.Store(true)
		s.close(s.dst)
	}
	if regions > 1 {
		s.srcClosed.Store(true)
		s.close(s.src)
	}
	flushed := waited && s.x.qp.State() == verbs.QPStateErr && !s.reset.Load()
	s.close(s.x.qp)
	s.close(s.y.qp)
	users.Wait()
	last := &stressUser{stress: s, last: s.newest}
	for last.poll() > 0 {
	}
	s.checkCounts(flushed)
	if regions < 1 || !s.mapped {
		s.checkMemory("target of WRITEs", s.dstBytes[:stressArea], s.wrote, s.longest[verbs.OpRDMAWrite])
		s.checkMemory("inbox", s.dstBytes[stressInbox:], s.received, s.longest[verbs.OpSend])
	}
	if regions < 2 || !s.mapped {
		s.checkMemory("source", s.srcBytes[:stressArea], stressArea, stressArea)
		s.checkMemory("target of READs", s.srcBytes[stressBack:], s.readBack, min(s.longest[verbs.OpRDMARead], s.longest[verbs.OpRDMAWrite]))
	}
	for _, mr := range []*verbs.MR{s.dst, s.src}[regions:] {
		s.close(mr)
	}
	for _, e := range []*end{s.x, s.y} {
		s.close(e.cq)
		s.close(e.pd)
	}
}

func (s *stress) close(c io.Closer) {
	if err := c.Close(); err != nil {
		s.t.Errorf("close: %v, want no error", err)
	}
}

// checkMemory wants the first least bytes to have been moved there, and nothing behind the first most.
func (s *stress) checkMemory(what string, b []byte, least, most int) {
	for i, got := range b {
		if want := stressByte(i); got != want && (i < least || got != 0) || got != 0 && i >= most {
			s.t.Errorf("%s: byte %d is %d; want %d before byte %d, nothing from byte %d on, and either of them between", what, i, got, want, least, most)
			return
		}
	}
}

// checkCounts checks what was told of SENDs and receives. Where the QP was in error, it must have
// flushed all that had no completion yet.
func (s *stress) checkCounts(flushed bool) {
	if s.recvsDone < s.sendsDone || s.recvsDone > s.sendsPosted {
		s.t.Errorf("%d messages were received, want at least %d, which were acknowledged, and at most %d, which were posted", s.recvsDone, s.sendsDone, s.sendsPosted)
	}
	if !flushed {
		return
	}
	for id, o := range s.ops {
		if !o.done {
			s.t.Errorf("work request %#x (%v) of a QP in error made no completion, want one", id, o.op)
		}
	}
}

// stressUser is one goroutine that uses a connection.
type stressUser struct {
	*stress
	number  uint64
	rng     *rand.Rand
	count   uint64
	written int                    // its longest WRITE
	last    [2][stressUsers]uint64 // the newest ID of each user that it has polled, from x's CQ and from y's
}

func (u *stressUser) run() {
	for range 100 {
		switch k := u.rng.IntN(10); {
		case k < 4:
			u.post()
		case k < 5:
			u.receive()
		case k < 9:
			u.poll()
		case u.number == 0 && u.rng.IntN(20) == 0:
			u.killed.Store(true)
			u.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
		case u.number == 0 && u.rng.IntN(20) == 0:
			u.reset.Store(true)
			u.x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
		default:
			u.x.qp.Query()
		}
	}
}

// id returns the ID of the user's next work request. It is never 0.
func (u *stressUser) id() uint64 {
	u.count++
	return u.number<<32 | u.count
}

func (u *stressUser) post() {
	o := &stressOp{op: []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend}[u.rng.IntN(3)], length: u.rng.IntN(stressArea)}
	wr := verbs.SendWR{ID: u.id(), Op: o.op, Flags: signaled, SGList: []verbs.SGE{u.src.SGE(0, o.length)}, Remote: u.dst.Remote(0)}
	if o.op == verbs.OpRDMARead {
		wr.SGList[0] = u.src.SGE(stressBack, o.length)
		o.back = min(o.length, u.written)
	}
	u.mu.Lock() // before it is posted: it may be complete at once
	u.ops[wr.ID] = o
	u.longest[o.op] = max(u.longest[o.op], o.length)
	u.mu.Unlock()
	_, err := u.x.qp.PostSend([]verbs.SendWR{wr})
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil:
		delete(u.ops, wr.ID)
	case o.op == verbs.OpRDMAWrite:
		u.written = max(u.written, o.length)
	case o.op == verbs.OpSend:
		u.sendsPosted++
	}
}

func (u *stressUser) receive() {
	wr := verbs.RecvWR{ID: u.id(), SGList: []verbs.SGE{u.dst.SGE(stressInbox, stressArea)}}
	u.mu.Lock()
	u.recvs[wr.ID] = false
	u.mu.Unlock()
	if _, err := u.y.qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
		u.mu.Lock()
		delete(u.recvs, wr.ID)
		u.mu.Unlock()
	}
}

// poll polls both CQs once and returns how many completions there were.
func (u *stressUser) poll() (total int) {
	for k, e := range []*end{u.x, u.y} {
		var wcs [4]verbs.WC
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			u.t.Errorf("poll: %v, want no error", err)
		}
		total += n
		u.mu.Lock()
		for _, wc := range wcs[:n] {
			u.inOrder(k, wc)
			if wc.QPN != e.qp.QPN() {
				u.t.Errorf("completion %+v, want QPN %v", wc, e.qp.QPN())
			}
			if wc.Status != verbs.WCSuccess {
				u.total.failed.Add(1)
			}
			if k == 0 {
				u.sendDone(wc)
			} else {
				u.recvDone(wc)
			}
		}
		u.mu.Unlock()
	}
	return total
}

// inOrder checks that the work requests of one user complete in the order of posting. Each goroutine
// that polls sees a part of the completions, in their order.
func (u *stressUser) inOrder(cq int, wc verbs.WC) {
	poster := wc.ID >> 32
	if poster >= stressUsers {
		u.t.Errorf("completion %+v, want an ID that was posted", wc)
		return
	}
	if wc.ID <= u.last[cq][poster] {
		u.t.Errorf("work request %#x completes behind %#x, want it before", wc.ID, u.last[cq][poster])
	}
	u.last[cq][poster] = wc.ID
	u.newest[cq][poster] = max(u.newest[cq][poster], wc.ID)
}

func (u *stressUser) sendDone(wc verbs.WC) {
	o := u.ops[wc.ID]
	if o == nil || o.done {
		u.t.Errorf("completion %+v of %+v, want one of a work request that was posted and is not done", wc, o)
		return
	}
	o.done = true
	if !u.sendAllowed(o, wc.Status) {
		u.t.Errorf("%v of %d bytes: %v; want a status that something caused: killed %v, source closed %v, target closed %v",
			o.op, o.length, wc.Err(), u.killed.Load(), u.srcClosed.Load(), u.dstClosed.Load())
	}
	if wc.Status != verbs.WCSuccess {
		return
	}
	want := map[verbs.Opcode]verbs.WCOpcode{verbs.OpRDMAWrite: verbs.WCRDMAWrite, verbs.OpRDMARead: verbs.WCRDMARead, verbs.OpSend: verbs.WCSend}[o.op]
	if wc.Op != want {
		u.t.Errorf("completion %+v of a %v, want %v", wc, o.op, want)
	}
	switch o.op {
	case verbs.OpRDMAWrite:
		u.total.writes.Add(1)
		u.wrote = max(u.wrote, o.length)
	case verbs.OpRDMARead:
		u.total.reads.Add(1)
		u.readBack = max(u.readBack, o.back)
	case verbs.OpSend:
		u.total.sends.Add(1)
		u.sendsDone++
	}
}

// sendAllowed reports whether anything that was done can lead to the status.
func (u *stressUser) sendAllowed(o *stressOp, status verbs.WCStatus) bool {
	killed, src, dst := u.killed.Load(), u.srcClosed.Load(), u.dstClosed.Load()
	switch status {
	case verbs.WCSuccess:
		return true
	case verbs.WCFlushErr:
		return killed || src || dst
	case verbs.WCLocProtErr:
		return src
	case verbs.WCRemAccessErr:
		return dst && o.op != verbs.OpSend
	case verbs.WCRemOpErr: // of the receive's memory
		return dst && o.op == verbs.OpSend
	case verbs.WCRetryExceeded: // the peer is in error and says nothing more
		return dst
	}
	return false
}

func (u *stressUser) recvDone(wc verbs.WC) {
	if done, posted := u.recvs[wc.ID]; done || !posted {
		u.t.Errorf("completion %+v, want one of a receive that was posted and is not done", wc)
		return
	}
	u.recvs[wc.ID] = true
	switch dst := u.dstClosed.Load(); wc.Status {
	case verbs.WCSuccess:
		if wc.Op != verbs.WCRecv || wc.SrcQPN != u.x.qp.QPN() {
			u.t.Errorf("completion %+v, want WC_RECV from QP %v", wc, u.x.qp.QPN())
		}
		u.total.received.Add(1)
		u.recvsDone++
		u.received = max(u.received, int(wc.ByteLen))
	case verbs.WCFlushErr, verbs.WCLocProtErr:
		if !dst {
			u.t.Errorf("receive: %v, want success: its memory is not closed", wc.Err())
		}
	default:
		u.t.Errorf("receive: %v, want success, WC_WR_FLUSH_ERR or WC_LOC_PROT_ERR", wc.Err())
	}
}
