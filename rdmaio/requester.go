package rdmaio

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// Sizes that we chose.
const (
	// DefaultPool is the limit in bytes of the pool that a requester makes for itself.
	DefaultPool = 4 << 20

	// A Read or Write of more than piece bytes is several work requests, of which ahead are under way at a time.
	piece = 256 << 10
	ahead = 4
)

// Requester issues requests on the send queue of a QP, for any number of goroutines at a time. It has one
// goroutine, which takes the completions.
type Requester struct {
	qp   *verbs.QP
	cq   *verbs.CQ
	pool *rdmapool.Pool
	own  bool // the pool is the requester's

	all  []request
	free chan *request // requests that are not under way
	over chan struct{} // closed when no request is taken any more
	done chan struct{} // closed when the goroutine has ended
	stop context.CancelFunc

	mu    sync.Mutex // guards the fields below, and the requests
	err   error      // why no request is taken any more
	count int        // requests under way
}

// request is a place in the send queue.
type request struct {
	id      uint64
	buf     *rdmapool.Buffer
	result  chan error // has the result of a request for which somebody waits
	busy    bool       // the device has the request
	arrived bool       // result has a value, or had
	left    bool       // nobody waits: the goroutine retires the request

	wr  [1]verbs.SendWR
	sge [1]verbs.SGE
}

// NewRequester makes a requester of an RC QP in RTS. Everything that is posted to its send queue goes through the
// requester, and no other queue may use the send CQ. The pool is for the data that Read, Write and the
// atomics move; the pool must be of the QP's PD. If the pool is nil the requester makes a pool with a limit of
// DefaultPool.
//
// Close the requester before the connection.
func NewRequester(qp *verbs.QP, pool *rdmapool.Pool) (*Requester, error) {
	_, init, err := qp.Query()
	if err != nil {
		return nil, fmt.Errorf("rdmaio: new requester: %w", err)
	}
	if init.Type != verbs.QPTypeRC || init.Cap.MaxSendWR < 1 || init.Cap.MaxSendSGE < 1 {
		return nil, fmt.Errorf("rdmaio: new requester: %w", verbs.Errorf(verbs.ErrInvalid, "the QP must be RC, with a send queue and an SGE for each request"))
	}
	r := &Requester{
		qp: qp, cq: qp.SendCQ(), pool: pool, all: make([]request, init.Cap.MaxSendWR), free: make(chan *request, init.Cap.MaxSendWR),
		over: make(chan struct{}), done: make(chan struct{}),
	}
	if pool == nil {
		if r.pool, err = rdmapool.New(qp.PD(), &rdmapool.Config{Limit: DefaultPool, Access: verbs.AccessLocalWrite}); err != nil {
			return nil, fmt.Errorf("rdmaio: new requester: %w", err)
		}
		r.own = true
	}
	for i := range r.all {
		q := &r.all[i]
		q.id, q.result = uint64(i), make(chan error, 1)
		r.free <- q
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go r.run(ctx)
	return r, nil
}

// Pool returns the pool of the data that the requester moves, for Do.
func (r *Requester) Pool() *rdmapool.Pool { return r.pool }

// Do issues a request and waits until it is complete. The memory is all of b, in place of wr.SGList; b is nil for
// requests that have none or have InlineData. ID and SendSignaled are the requester's. After an error b
// belongs to the requester, which releases b once the device is done with b. If the error is ctx's, the
// request may still be executed.
func (r *Requester) Do(ctx context.Context, wr verbs.SendWR, b *rdmapool.Buffer) error {
	q, err := r.start(ctx, wr, b, true, false)
	if err == nil {
		err = r.wait(ctx, q)
	}
	if err != nil {
		return opError(wr.Op, err)
	}
	return nil
}

func opError(op verbs.Opcode, err error) error { return fmt.Errorf("rdmaio: %v: %w", op, err) }

// errNoRoom says that start would have had to wait.
var errNoRoom = errors.New("the send queue is full")

// start posts a request. If there is no place in the queue start waits, unless block is false. If leave is true
// nobody will wait for the request. After an error b is released.
func (r *Requester) start(ctx context.Context, wr verbs.SendWR, b *rdmapool.Buffer, block, leave bool) (*request, error) {
	q, err := r.place(ctx, block)
	if err == nil {
		err = r.post(q, wr, b, leave)
	}
	if err != nil {
		release(b)
		return nil, err
	}
	return q, nil
}

func release(b *rdmapool.Buffer) {
	if b != nil {
		b.Release()
	}
}

// place returns a request that is free.
func (r *Requester) place(ctx context.Context, block bool) (*request, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case q := <-r.free:
		return q, nil
	default:
	}
	if !block {
		return nil, errNoRoom
	}
	select {
	case q := <-r.free:
		return q, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.over:
		r.mu.Lock()
		defer r.mu.Unlock()
		return nil, r.err
	}
}

// post posts q. After an error q is free again.
func (r *Requester) post(q *request, wr verbs.SendWR, b *rdmapool.Buffer, leave bool) error {
	wr.ID = q.id
	wr.Flags |= verbs.SendSignaled
	r.mu.Lock()
	if r.err != nil {
		defer r.mu.Unlock()
		r.free <- q
		return r.err
	}
	if b != nil {
		q.sge[0] = b.SGE(0, b.Len())
		wr.SGList = q.sge[:]
	}
	q.wr[0] = wr
	q.buf, q.busy, q.left, q.arrived = b, true, leave, false
	r.count++
	r.mu.Unlock()
	_, err := r.qp.PostSend(q.wr[:])
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !q.busy { // run has ended the request meanwhile, with the CQ, and the result says why
		return nil
	}
	q.buf, q.busy = nil, false
	r.free <- q
	r.gone(1)
	return r.cause(err)
}

// wait waits for a request. After an error its buffer is released, now or later.
func (r *Requester) wait(ctx context.Context, q *request) error {
	select {
	case err := <-q.result:
		return r.finish(q, err)
	case <-ctx.Done():
	}
	if r.leave(q) {
		return context.Cause(ctx)
	}
	return r.finish(q, <-q.result)
}

// leave leaves a request to the goroutine, unless its result is there.
func (r *Requester) leave(q *request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q.left = !q.arrived
	return q.left
}

// finish frees a request whose result somebody has taken.
func (r *Requester) finish(q *request, err error) error {
	if err != nil {
		release(q.buf)
	}
	q.buf = nil
	r.free <- q
	return err
}

// run takes the completions.
func (r *Requester) run(ctx context.Context) {
	defer close(r.done)
	var wcs [32]verbs.WC
	for {
		n, err := r.cq.Wait(ctx, wcs[:])
		r.mu.Lock()
		for i := range wcs[:n] {
			if id := wcs[i].ID; id < uint64(len(r.all)) && r.all[id].busy {
				r.complete(&r.all[id], r.result(&wcs[i]))
			}
		}
		if err != nil {
			if ctx.Err() == nil { // the CQ is closed, or was overrun: nothing comes any more
				r.fail(err)
				for i := range r.all {
					if r.all[i].busy {
						r.complete(&r.all[i], err)
					}
				}
			}
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
	}
}

// complete hands out the result of a request. The caller holds mu.
func (r *Requester) complete(q *request, err error) {
	q.busy = false
	if q.left {
		release(q.buf)
		q.buf = nil
		r.free <- q
	} else {
		q.arrived = true
		q.result <- err
	}
	r.gone(1)
}

// gone counts requests that are under way no more. The caller holds mu.
func (r *Requester) gone(n int) {
	r.count -= n
	if r.count == 0 && r.err != nil {
		r.stop()
	}
}

// fail has no further request taken. The caller holds mu.
func (r *Requester) fail(err error) {
	if r.err == nil {
		r.err = err
		close(r.over)
	}
}

// result returns the outcome that a completion states.
func (r *Requester) result(wc *verbs.WC) error {
	if wc.Status == verbs.WCSuccess {
		return nil
	}
	if wc.Status == verbs.WCFlushErr {
		return r.cause(wc.Err())
	}
	return wc.Err()
}

// cause says why the QP works no more, or err if the QP does not know.
func (r *Requester) cause(err error) error {
	if cause := r.qp.Err(); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// Close ends the requester: Close takes the QP to the error state, so that nothing is under way any more when
// Close returns, and closes the pool if the pool is the requester's own. Calls that wait return an error, and
// later ones verbs.ErrClosed. The QP is the caller's to destroy.
func (r *Requester) Close() error {
	r.mu.Lock()
	first := r.err == nil
	r.fail(fmt.Errorf("the requester is closed: %w", verbs.ErrClosed))
	r.gone(0)
	r.mu.Unlock()
	var err error
	if first {
		if err = r.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState); errors.Is(err, verbs.ErrClosed) {
			err = nil
		}
	}
	<-r.done
	if r.own {
		err = errors.Join(err, r.pool.Close())
	}
	return err
}

// Read reads len(p) bytes of the peer's memory.
func (r *Requester) Read(ctx context.Context, p []byte, from verbs.RemoteAddr) error {
	_, err := r.move(ctx, verbs.OpRDMARead, p, from)
	return err
}

// Write writes p into the peer's memory. When Write returns nil, p is in that memory. The peer's program is not told.
func (r *Requester) Write(ctx context.Context, p []byte, to verbs.RemoteAddr) error {
	_, err := r.move(ctx, verbs.OpRDMAWrite, p, to)
	return err
}

// moving is a piece of a Read or Write.
type moving struct {
	q *request
	b *rdmapool.Buffer
}

// move moves p in pieces, and returns how many bytes from its beginning on are known to have been moved.
func (r *Requester) move(ctx context.Context, op verbs.Opcode, p []byte, at verbs.RemoteAddr) (done int, err error) {
	var queue [ahead]moving
	first, count := 0, 0
	most := min(piece, r.pool.Limit())
	for started := 0; done < len(p) && err == nil; {
		// Whoever holds something does not wait for more, so that all who have begun can go on.
		if started < len(p) && count < ahead {
			n := min(most, len(p)-started)
			var b *rdmapool.Buffer
			if count > 0 {
				b = r.pool.TryGet(n)
			} else if b, err = r.pool.Get(ctx, n); err != nil {
				break
			}
			if b != nil {
				if op == verbs.OpRDMAWrite {
					copy(b.Bytes(), p[started:])
				}
				var q *request
				q, err = r.start(ctx, verbs.SendWR{Op: op, Remote: at.Add(started)}, b, count == 0, false)
				if err == nil {
					queue[(first+count)%ahead] = moving{q, b}
					count++
					started += n
					continue
				}
				if err != errNoRoom || count == 0 {
					break
				}
				err = nil
			}
		}
		m := queue[first]
		first, count = (first+1)%ahead, count-1
		if err = r.wait(ctx, m.q); err == nil {
			if op == verbs.OpRDMARead {
				copy(p[done:], m.b.Bytes())
			}
			done += m.b.Len()
			m.b.Release()
		}
	}
	for ; count > 0; count-- {
		m := queue[first]
		first = (first + 1) % ahead
		if !r.leave(m.q) && r.finish(m.q, <-m.q.result) == nil {
			m.b.Release()
		}
	}
	if err != nil {
		return done, opError(op, err)
	}
	return done, nil
}

// FetchAdd adds to an aligned 64-bit word of the peer's memory, atomically, and returns the word's old value.
func (r *Requester) FetchAdd(ctx context.Context, at verbs.RemoteAddr, add uint64) (old uint64, err error) {
	return r.atomic(ctx, verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Remote: at, CompareAdd: add})
}

// CompareSwap stores swap in an aligned 64-bit word of the peer's memory if the word is compare,
// atomically, and returns the word's old value.
func (r *Requester) CompareSwap(ctx context.Context, at verbs.RemoteAddr, compare, swap uint64) (old uint64, err error) {
	return r.atomic(ctx, verbs.SendWR{Op: verbs.OpAtomicCmpSwap, Remote: at, CompareAdd: compare, Swap: swap})
}

func (r *Requester) atomic(ctx context.Context, wr verbs.SendWR) (old uint64, err error) {
	b, err := r.pool.Get(ctx, 8)
	if err == nil {
		err = r.Do(ctx, wr, b)
	}
	if err != nil {
		return 0, err
	}
	defer b.Release()
	return verbs.View[uint64](b.Bytes())[0], nil // in the host's order
}
