package perftest

import (
	"context"
	"errors"
	"runtime"
	"sort"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

const pollBatch = 16

// bandwidth is a run of a bandwidth test with messages of one size.
type bandwidth struct {
	*tester
	ctx   context.Context // ends when the run is to end
	wcs   []verbs.WC
	total int64 // messages each way; 0 if time ends the run

	sent, done, got int64

	// When each message was posted, and when each was found complete, for the peak bandwidth.
	postedAt, completedAt []int64

	first, last int64 // when the run began and ended
	lastGot     int64 // when the last message was found, where messages can be lost
	limiter     limiter
	short       bool // of credits: a lane would send, and the peer has no receives
}

// limiter spaces out bursts of messages.
type limiter struct {
	gap      int64 // nanoseconds from one burst to the next; 0 for no limit
	deadline int64 // when the next burst may begin
	left     int   // messages of this burst
}

// newLimiter makes the limiter of --rate_limit for messages of the size.
func newLimiter(p *params, size int) limiter {
	if p.rate == 0 {
		return limiter{}
	}
	rate := p.rate // messages per second
	switch p.rateUnits {
	case "M":
		rate *= float64(1<<20) / float64(size)
	case "g":
		rate *= 1e9 / 8 / float64(size)
	}
	const most = 1 << 62 // of the lowest rates a burst takes centuries
	return limiter{gap: max(1, int64(min(1e9*float64(p.burst)/rate, most)))}
}

// open reports whether a message may be sent now.
func (l *limiter) open(burst int) bool {
	if l.left > 0 || l.gap == 0 {
		return true
	}
	at := now()
	if at < l.deadline {
		return false
	}
	l.deadline, l.left = at+l.gap, burst
	return true
}

// newBandwidth prepares a run: all that it needs is allocated here.
func (t *tester) newBandwidth(size int) *bandwidth {
	b := &bandwidth{tester: t, ctx: t.ctx, limiter: newLimiter(t.params, size), wcs: make([]verbs.WC, t.pollBatch)}
	if !t.byTime {
		b.total = int64(t.iters) * int64(t.qps)
	}
	if !t.noPeak && t.sends() {
		b.postedAt, b.completedAt = make([]int64, b.total), make([]int64, b.total)
	}
	t.meter.count.Store(0)
	for i := range t.lanes {
		l := &t.lanes[i]
		l.posted, l.completed, l.received, l.promised, l.unused, l.next = 0, 0, 0, 0, 0, 0
		if t.sends() {
			t.prepareSends(l, i, size)
		}
	}
	t.beginCredits()
	return b
}

// prepareSends makes a lane's list of work requests.
func (t *tester) prepareSends(l *lane, index, size int) {
	op := [...]verbs.Opcode{verbSend: verbs.OpSend, verbWrite: verbs.OpRDMAWrite, verbRead: verbs.OpRDMARead, verbAtomic: verbs.OpAtomicFetchAdd}[t.kind.verb]
	switch {
	case t.swap:
		op = verbs.OpAtomicCmpSwap
	case t.sendImm:
		op = verbs.OpSendWithImm
	}
	l.sends = make([]verbs.SendWR, t.postList)
	for j := range l.sends {
		wr := &l.sends[j]
		*wr = verbs.SendWR{ID: uint64(index), Op: op, SGList: []verbs.SGE{l.mr.SGE(l.sendOff, size)}}
		if t.kind.verb != verbSend {
			wr.Remote = verbs.RemoteAddr{VA: l.remote.vaddr, RKey: l.remote.rkey}
		}
		if t.qpType == verbs.QPTypeUD {
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = l.ah, l.remote.qpn, l.remoteQKey
		}
		if t.xrc() {
			wr.RemoteSRQN = verbs.SRQN(l.remote.srqn)
		}
		if op == verbs.OpAtomicFetchAdd {
			wr.CompareAdd = 1
		}
		if !t.kind.verb.oneSidedRead() && size <= t.inline {
			wr.Flags |= verbs.SendInline
		}
		if (j+1)%t.cqMod == 0 {
			wr.Flags |= verbs.SendSignaled
		}
		t.advance(l, wr, size)
	}
}

// advance moves a work request to the next place of its lane's cycle. Small messages go round in a
// page, so that a peer's cache line is not written by all of them.
func (t *tester) advance(l *lane, wr *verbs.SendWR, size int) {
	if size > t.cycle/2 {
		return
	}
	wr.SGList[0].Addr = l.mr.Addr() + uint64(l.sendOff+l.next)
	if t.kind.verb != verbSend {
		wr.Remote.VA = l.remote.vaddr + uint64(l.next)
	}
	step := roundUp(size, t.line)
	if l.next += step; l.next+step > t.cycle {
		l.next = 0
	}
}

// postReceives posts the receives that a run begins with.
func (t *tester) postReceives(size int) error {
	depth := t.rxDepth
	if t.srq {
		depth /= t.qps
	}
	if t.qpType == verbs.QPTypeUD {
		size += verbs.GRHSize
	}
	for i := range t.lanes {
		l := &t.lanes[i]
		l.recvs = make([]verbs.RecvWR, t.recvList)
		for j := range l.recvs {
			l.recvs[j] = verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{l.mr.SGE(l.recvOff, size)}}
		}
		for range depth / t.recvList {
			if err := t.postRecv(l, l.recvs); err != nil {
				return fail(err, "Couldn't post recv Qp = %d: counter=%d", i, l.promised)
			}
			l.promised += int64(t.recvList)
		}
	}
	return nil
}

// run runs the test, and returns this end's results.
func (b *bandwidth) run(size int) (bwReport, error) {
	defer b.meter.progress(b.inv.Stderr, b.total)()
	defer b.expectAnswer(size, 0)()
	if b.endless {
		defer b.reportForever(size)()
	}
	if b.receives() && !b.byTime {
		defer b.watchdog(starvation)()
	}
	var err error
	switch {
	case !b.sends():
		err = b.receiveAll()
	case b.receives():
		err = b.bothWays()
	default:
		err = b.sendAll()
	}
	if errors.Is(err, errStarved) {
		return makeReport(size, b.got, b.lastGot-b.first, b.gbits), err
	}
	if err != nil {
		return bwReport{}, err
	}
	return b.summary(size)
}

// begin notes that the run has begun at a time.
func (b *bandwidth) begin(at int64) {
	if b.byTime && !b.endless {
		b.ctx = b.meter.start(b.tester.ctx, at, b.duration, b.margin)
	}
	b.first = at
}

// goesOn reports whether the run is not over yet.
func (b *bandwidth) goesOn(done int64) bool {
	if b.byTime {
		return b.ctx.Err() == nil
	}
	return done < b.total
}

// sendAll sends and waits for the completions: the one that measures.
func (b *bandwidth) sendAll() error {
	b.begin(now())
	for b.goesOn(b.done) {
		if err := b.fill(); err != nil {
			return err
		}
		n, err := b.await()
		if err != nil {
			return b.ended(err)
		}
		if err := b.take(n); err != nil {
			return err
		}
	}
	b.last = now()
	return nil
}

// ended returns nil if err is the end of a run by time.
func (b *bandwidth) ended(err error) error {
	if context.Cause(b.ctx) == errStarved {
		return fail(errStarved, "Did not get Message for %d Seconds, exiting..\n Total Received=%d, Total Iters Required=%d", starvation/time.Second, b.got, b.total)
	}
	if b.byTime && !b.endless && b.ctx.Err() != nil && b.tester.ctx.Err() == nil {
		return nil
	}
	return err
}

// await waits for completions. While the rate is limited, or credits are awaited, it only looks for them.
func (b *bandwidth) await() (int, error) {
	if b.limiter.gap == 0 && !b.short {
		return b.wait(b.ctx, b.wcs)
	}
	runtime.Gosched()
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.cq.Poll(b.wcs)
}

// fill posts messages to all QPs until their queues are full.
func (b *bandwidth) fill() error {
	list := int64(b.postList)
	b.short = false
	for i := range b.lanes {
		l := &b.lanes[i]
		for (b.byTime || l.posted < int64(b.iters)) && l.posted-l.completed+list <= int64(b.txDepth) {
			if !b.granted(i) {
				break
			}
			if !b.limiter.open(b.burst) {
				return nil
			}
			b.limiter.left -= b.postList
			if err := b.post(l); err != nil {
				return fail(err, "Couldn't post send: qp %d scnt=%d", i, l.posted)
			}
		}
	}
	return nil
}

// post posts a lane's next list.
func (b *bandwidth) post(l *lane) error {
	if b.postList == 1 && b.cqMod > 1 {
		wr := &l.sends[0]
		if (l.posted+1)%int64(b.cqMod) == 0 || !b.byTime && l.posted+1 == int64(b.iters) {
			wr.Flags |= verbs.SendSignaled
		} else {
			wr.Flags &^= verbs.SendSignaled
		}
	}
	if b.postedAt != nil {
		b.postedAt[b.sent] = now()
	}
	if _, err := l.qp.PostSend(l.sends); err != nil {
		return err
	}
	if b.postList == 1 {
		b.advance(l, &l.sends[0], int(l.sends[0].SGList[0].Length))
	}
	l.posted += int64(b.postList)
	b.sent += int64(b.postList)
	return nil
}

// take accounts for n completions.
func (b *bandwidth) take(n int) error {
	for i := range b.wcs[:n] {
		wc := &b.wcs[i]
		l := &b.lanes[wc.ID]
		switch {
		case wc.Status != verbs.WCSuccess && b.receives() && !b.sends():
			return fail(l.why(wc), "Completion with error at server\n Failed status %d: wr_id %d syndrom 0x%x\n rcnt=%d", wc.Status, wc.ID, wc.VendorErr, b.got)
		case wc.Status != verbs.WCSuccess:
			return fail(l.why(wc), "Completion with error at client\n Failed status %d: wr_id %d syndrom 0x%x\nscnt=%d, ccnt=%d", wc.Status, wc.ID, wc.VendorErr, b.sent, b.done)
		case wc.Op == verbs.WCRecv:
			if err := b.takeReceived(l); err != nil {
				return err
			}
			if err := b.grant(l); err != nil {
				return err
			}
		case b.kind.verb == verbSend && wc.Op == verbs.WCRDMAWrite:
			l.telling = false
			if err := b.grant(l); err != nil {
				return err
			}
		default:
			count := min(int64(b.cqMod), l.posted-l.completed)
			l.completed += count
			b.done += count
			if b.completedAt != nil {
				b.completedAt[b.done-1] = now()
			}
		}
	}
	b.meter.count.Store(b.done + b.got)
	if b.losesMessages() {
		b.lastGot = now()
	}
	return nil
}

// losesMessages reports whether messages to this end can be lost.
func (b *bandwidth) losesMessages() bool { return b.lossy() && b.receives() }

// takeReceived accounts for a message, and posts receives in place of those that were used.
func (b *bandwidth) takeReceived(l *lane) error {
	b.got++
	l.received++
	l.unused++
	if l.unused < b.recvList || !b.byTime && l.promised+int64(b.recvList) > int64(b.iters) {
		return nil
	}
	l.unused -= b.recvList
	l.promised += int64(b.recvList)
	if err := b.postRecv(l, l.recvs); err != nil {
		return fail(err, "Couldn't post recv Qp=%d rcnt=%d", l.recvs[0].ID, l.received)
	}
	return nil
}

// receiveAll receives: the other end of send_bw.
func (b *bandwidth) receiveAll() error {
	n, err := b.awaitFirst()
	for err == nil {
		if err := b.take(n); err != nil {
			return err
		}
		if !b.goesOn(b.got) {
			b.last = now()
			return nil
		}
		n, err = b.wait(b.ctx, b.wcs)
	}
	return b.ended(err)
}

// bothWays sends and receives. The server begins after the client, so that its messages do not use
// up the receives of a client that has not begun.
func (b *bandwidth) bothWays() error {
	if b.sender {
		b.begin(now())
	} else {
		n, err := b.awaitFirst()
		if err != nil {
			return b.ended(err)
		}
		if err := b.take(n); err != nil {
			return err
		}
	}
	for b.goesOn(min(b.done, b.got)) {
		if err := b.fill(); err != nil {
			return err
		}
		n, err := b.await()
		if err != nil {
			return b.ended(err)
		}
		if err := b.take(n); err != nil {
			return err
		}
	}
	b.last = now()
	return nil
}

// summary makes the report of the run.
func (b *bandwidth) summary(size int) (bwReport, error) {
	count, ns := b.total, b.last-b.first
	if b.byTime {
		var ok bool
		if count, ns, ok = b.meter.stop(); !ok {
			return bwReport{}, errors.New("the run ended before its measured part was over")
		}
	}
	r := makeReport(size, count, ns, b.gbits)
	if b.postedAt != nil {
		r.peak = b.peak(float64(size))
	}
	return r, nil
}

// peak is the highest bandwidth between any message and any later completion: the steepest line from a point
// (time of a post, messages before it) to a point (time of a completion, messages up to it). Only the lower convex
// hull of the posts can have its begin, so the time does not grow with the square of the messages, of which -q makes
// many.
func (b *bandwidth) peak(size float64) float64 {
	slope := func(from, to int) float64 { return float64(to-from) / float64(b.postedAt[to]-b.postedAt[from]) }
	var hull []int // posts
	best := float64(0)
	for j, completed := range b.completedAt {
		if j%b.postList == 0 && (len(hull) == 0 || b.postedAt[hull[len(hull)-1]] < b.postedAt[j]) {
			for n := len(hull); n > 1 && slope(hull[n-2], hull[n-1]) >= slope(hull[n-1], j); n-- {
				hull = hull[:n-1]
			}
			hull = append(hull, j)
		}
		if completed == 0 { // it shared the completion of a later one
			continue
		}
		rate := func(k int) float64 {
			if ns := completed - b.postedAt[hull[k]]; ns > 0 {
				return float64(j-hull[k]+1) / float64(ns)
			}
			return 0
		}
		best = max(best, rate(sort.Search(len(hull)-1, func(k int) bool { return rate(k) >= rate(k+1) })))
	}
	return size * best * 1e9 / unit(b.gbits)
}

// reportForever prints an endless run's figures, every -D seconds, until stop is called.
func (b *bandwidth) reportForever(size int) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	last := b.meter.sample()
	go func() {
		defer close(done)
		tick := time.NewTicker(b.duration)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				s := b.meter.sample()
				r := makeReport(size, s.count-last.count, s.at-last.at, b.gbits)
				b.printRow(&r)
				last = s
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// warmUpLanes sends a queue full of messages that do not count.
func (b *bandwidth) warmUpLanes() error {
	for i := range b.lanes {
		l := &b.lanes[i]
		l.sends[0].Flags |= verbs.SendSignaled
		for range b.txDepth {
			if _, err := l.qp.PostSend(l.sends); err != nil {
				return fail(err, "Problems with warm up")
			}
		}
		for left := b.txDepth; left > 0; {
			n, err := b.wait(b.ctx, b.wcs)
			if err != nil {
				return fail(err, "Problems with warm up")
			}
			for j := range b.wcs[:n] {
				if err := b.wcs[j].Err(); err != nil {
					return fail(err, "Problems with warm up")
				}
			}
			left -= n
		}
		if b.cqMod > 1 {
			l.sends[0].Flags &^= verbs.SendSignaled
		}
	}
	return nil
}
