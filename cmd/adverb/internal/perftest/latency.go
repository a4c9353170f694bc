package perftest

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/adverb-rdma/adverb/verbs"
)

// The histogram holds times of 1 ns to 100 s. With 4 digits, times below 32 µs are exact, and the
// others off by 0.006 % at most.
const (
	longestTime = 100_000_000_000
	digits      = 4
)

const (
	// spinPolls is how often memory is looked at before the program sleeps in between: some
	// milliseconds.
	spinPolls  = 4096
	nap        = 50 * time.Microsecond
	yieldPolls = 16 // after so many, other goroutines may run
)

// latency is a run of a latency test with messages of one size.
type latency struct {
	*tester
	ctx context.Context // ends when the run is to end
	l   *lane
	wcs []verbs.WC

	iters     int64
	sent      int64 // posted
	done      int64 // sends that are complete
	got       int64 // messages that have come
	last      int64 // when the last message was posted
	histogram *hdrhistogram.Histogram
	all       []int64 // each time in nanoseconds, for -H and -U
}

func (t *tester) newLatency(size int) *latency {
	x := &latency{tester: t, ctx: t.ctx, l: &t.lanes[0], iters: int64(t.params.iters), wcs: make([]verbs.WC, t.pollBatch),
		histogram: hdrhistogram.New(1, longestTime, digits)}
	if t.sorted || t.unsorted {
		x.all = make([]int64, 0, x.iters)
	}
	t.meter.count.Store(0)
	l := x.l
	l.posted, l.completed, l.received, l.promised, l.unused, l.next = 0, 0, 0, 0, 0, 0
	t.prepareSends(l, 0, size)
	l.sends[0].SGList[0].Addr = l.mr.Addr() + uint64(l.sendOff)
	l.sends[0].Flags |= verbs.SendSignaled
	return x
}

// run runs the test, and returns this end's results.
func (x *latency) run(size int) (latReport, error) {
	total := x.iters
	if x.byTime {
		total = 0
	}
	defer x.meter.progress(x.inv.Stderr, total)()
	defer x.expectAnswer(size, 1)()
	var err error
	switch x.kind.verb {
	case verbSend:
		err = x.bounceMessages()
	case verbWrite:
		x.begin()
		err = x.bounceWrites(size)
	default:
		x.begin()
		err = x.roundTrips()
	}
	if err != nil {
		return latReport{}, err
	}
	return x.summary(size)
}

// begin starts the clock of -D.
func (x *latency) begin() {
	if x.byTime {
		x.ctx = x.meter.start(x.tester.ctx, now(), x.duration, x.margin)
	}
}

// goesOn reports whether the run is not over yet, after n messages.
func (x *latency) goesOn(n int64) bool {
	if x.byTime {
		return x.ctx.Err() == nil
	}
	return n < x.iters
}

// ended returns nil if err is the end of a run by time.
func (x *latency) ended(err error) error {
	if x.byTime && x.ctx.Err() != nil && x.tester.ctx.Err() == nil {
		return nil
	}
	return err
}

// post posts the next message, and notes the time since the last one.
func (x *latency) post() error {
	if x.gap > 0 {
		for until := now() + int64(x.gap); now() < until; {
		}
	}
	at := now()
	if x.sent > 0 {
		x.record(at - x.last)
	}
	x.last = at
	x.sent++
	if _, err := x.l.qp.PostSend(x.l.sends); err != nil {
		return fail(err, "Couldn't post send: scnt=%d", x.sent)
	}
	return nil
}

// record notes a time in nanoseconds between two messages.
func (x *latency) record(ns int64) {
	x.histogram.RecordValue(min(max(ns, 1), longestTime)) // which has no other error
	if x.all != nil {
		x.all = append(x.all, ns)
	}
}

// take accounts for n completions.
func (x *latency) take(n int) error {
	for i := range x.wcs[:n] {
		wc := &x.wcs[i]
		switch {
		case wc.Status != verbs.WCSuccess:
			return fail(wc.Err(), "Completion with error at client\n Failed status %d: wr_id %d syndrom 0x%x\nscnt=%d, ccnt=%d",
				wc.Status, wc.ID, wc.VendorErr, x.sent, x.done)
		case wc.Op == verbs.WCRecv:
			x.got++
			if x.byTime || x.l.promised+1 <= x.iters {
				x.l.promised++
				if err := x.postRecv(x.l, x.l.recvs); err != nil {
					return fail(err, "Couldn't post recv: rcnt=%d", x.got)
				}
			}
		default:
			x.done++
		}
	}
	return nil
}

// await waits for completions, and accounts for them.
func (x *latency) await() error {
	n, err := x.wait(x.ctx, x.wcs)
	if err != nil {
		return err
	}
	return x.take(n)
}

// awaitAllBut waits until no more than n of the messages sent have no completion.
func (x *latency) awaitAllBut(n int64) error {
	for x.sent-x.done > n {
		if err := x.await(); err != nil {
			return err
		}
	}
	return nil
}

// bounceMessages is send_lat. The end that begins posts a message, and then each answers the other's.
func (x *latency) bounceMessages() error {
	started := false
	for x.goesOn(min(x.sent, x.got)) {
		if wanted := x.sent + 1; !x.sender || x.sent > 0 {
			if x.sender {
				wanted--
			}
			for x.got < min(wanted, x.limit()) {
				if err := x.await(); err != nil {
					return x.ended(err)
				}
				if !started && x.got > 0 {
					started = true
					x.begin()
				}
			}
		}
		if !x.goesOn(x.sent) {
			continue
		}
		if err := x.awaitAllBut(int64(x.sendDepth()) - 1); err != nil {
			return x.ended(err)
		}
		if err := x.post(); err != nil {
			return err
		}
		x.meter.count.Store(x.sent)
	}
	return x.drain()
}

// limit is how many messages there are each way.
func (x *latency) limit() int64 {
	if x.byTime {
		return 1<<63 - 1
	}
	return x.iters
}

// drain waits for the completions of posted messages. After a run by time the peer may have gone on.
func (x *latency) drain() error {
	if x.byTime {
		return nil
	}
	return x.awaitAllBut(0)
}

// roundTrips is read_lat and atomic_lat: one operation after the other.
func (x *latency) roundTrips() error {
	for x.goesOn(x.sent) {
		if err := x.post(); err != nil {
			return err
		}
		if err := x.awaitAllBut(0); err != nil {
			return x.ended(err)
		}
		x.meter.count.Store(x.done)
	}
	return nil
}

// bounceWrites is write_lat. An end that waits watches the last byte of where the peer writes: it
// counts the writes. Here the server begins, unlike in send_lat. If both ends began, a write could come
// before the one in front of it has been seen, and that one would be waited for without end.
func (x *latency) bounceWrites(size int) error {
	mine := &x.l.mr.Bytes()[x.l.sendOff+size-1]
	for x.goesOn(min(x.sent, x.got)) {
		if x.got < x.limit() && (x.sender || x.sent > 0) {
			if err := x.watch(x.l.recvOff+size-1, byte(x.got+1)); err != nil {
				return x.ended(err)
			}
			x.got++
		}
		if !x.goesOn(x.sent) {
			continue
		}
		if err := x.awaitAllBut(int64(x.sendDepth()) - 1); err != nil {
			return x.ended(err)
		}
		*mine = byte(x.sent + 1)
		if err := x.post(); err != nil {
			return err
		}
		x.meter.count.Store(x.sent)
	}
	return x.drain()
}

// watch waits until a byte of the memory that the peer writes has the value. Meanwhile it polls, so that packets are
// processed here and now.
func (x *latency) watch(off int, want byte) error {
	const word = 8
	for i := 0; ; i++ {
		var b [word]byte
		binary.NativeEndian.PutUint64(b[:], x.l.mr.Load64(off&^(word-1)))
		if b[off%word] == want {
			return nil
		}
		n, err := x.cq.Poll(x.wcs)
		if err == nil {
			err = x.take(n)
		}
		if err != nil {
			return err
		}
		if i%yieldPolls == yieldPolls-1 {
			runtime.Gosched()
			if x.ctx.Err() != nil {
				return x.ctx.Err()
			}
		}
		if i > spinPolls { // the peer is far behind, and may need this processor
			time.Sleep(nap)
		}
	}
}

// summary makes the report of the run.
func (x *latency) summary(size int) (latReport, error) {
	r := latReport{size: size, iters: x.iters, histogram: x.histogram, all: x.all, oneWay: !x.kind.verb.oneSidedRead()}
	if x.byTime {
		count, ns, ok := x.meter.stop()
		if !ok || count == 0 {
			return r, errors.New("the run ended before a message of its measured part was answered")
		}
		r.byTime, r.iters, r.elapsed = true, count, ns
	}
	return r, nil
}
