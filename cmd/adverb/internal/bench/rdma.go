package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// receives is how many receives the server has posted, so that the client, with its operations
// outstanding, never waits for one.
const receives = 4 * manyOutstanding

// patient is verbs.DefaultRetry with a longer time to acknowledge, 0.54 s. On a busy machine a process may get no
// core for as long. Such a wait shows in the value.
var patient = verbs.Retry{Timeout: 17, RetryCount: verbs.DefaultRetry.RetryCount, RNRRetryCount: verbs.DefaultRetry.RNRRetryCount, MaxRDAtomic: verbs.DefaultRetry.MaxRDAtomic}

// atomics is how many of them the client has in flight. The software device takes as many.
const atomics = manyOutstanding

// rdmaEnd is an end of an RC connection.
type rdmaEnd struct {
	*order
	w *workload

	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR
	gid  verbs.GID
	peer rdmaAddress

	slots int // messages that the region holds
	list  int // work requests that are posted at a time
	wrs   [listLength]verbs.SendWR
	sge   [listLength]verbs.SGE
	rwrs  [listLength]verbs.RecvWR
	rsge  [listLength]verbs.SGE
	wcs   [64]verbs.WC
	total int64
}

// rdmaAddress is the address that the other end needs.
type rdmaAddress struct {
	QPN    verbs.QPN
	GID    verbs.GID
	Remote verbs.RemoteAddr
}

func newRDMAEnd(o *order, w *workload) end { return &rdmaEnd{order: o, w: w} }

// remoteAccess is the peer's access to the region.
const remoteAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func (e *rdmaEnd) open() (any, error) {
	pd, attr, err := e.makeObjects(e.Device)
	if err != nil {
		return nil, err
	}
	entry, err := pd.Device().GID(1, 0)
	if err != nil {
		return nil, err
	}
	if e.qp, err = pd.CreateQP(attr); err != nil {
		return nil, err
	}
	if err := e.qp.Init(1, remoteAccess); err != nil {
		return nil, err
	}
	e.gid = entry.GID
	return rdmaAddress{e.qp.QPN(), e.gid, e.mr.Remote(0)}, nil
}

// makeObjects makes all but the QP on a device, and says which QP they are for.
func (e *rdmaEnd) makeObjects(device string) (*verbs.PD, verbs.QPInitAttr, error) {
	dev, err := verbs.Open(device)
	if err != nil {
		return nil, verbs.QPInitAttr{}, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, verbs.QPInitAttr{}, err
	}
	if e.cq, err = dev.CreateCQ(2 * receives); err != nil {
		return nil, verbs.QPInitAttr{}, err
	}
	if e.mr, err = pd.AllocMR(e.w.region(), verbs.AccessLocalWrite|remoteAccess); err != nil {
		return nil, verbs.QPInitAttr{}, err
	}
	e.slots = e.w.region() / e.w.size
	return pd, verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: manyOutstanding, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}}, nil
}

func (e *rdmaEnd) connect(address json.RawMessage) error {
	if err := json.Unmarshal(address, &e.peer); err != nil {
		return err
	}
	if err := e.qp.RTR(verbs.Peer{QPN: e.peer.QPN, GID: e.peer.GID}, verbs.Path{}); err != nil {
		return err
	}
	retry := patient
	if e.w.kind == kindAtomic {
		retry.MaxRDAtomic = atomics
	}
	if err := e.qp.RTS(0, retry); err != nil {
		return err
	}
	if e.Control != "" {
		control, err := verbs.ParseCongestionControl(e.Control)
		if err != nil {
			return err
		}
		if err := e.qp.SetCongestionControl(control); err != nil {
			return err
		}
	}
	return e.begin()
}

// begin prepares the work requests, and posts receives where the workload needs them.
func (e *rdmaEnd) begin() error {
	e.list = 1
	if e.w.kind == kindList {
		e.list = listLength
	}
	for i := range e.wrs {
		e.wrs[i] = verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: e.sge[i : i+1], Remote: e.peer.Remote}
		e.rwrs[i] = verbs.RecvWR{SGList: e.rsge[i : i+1]}
	}
	switch e.w.kind {
	case kindWrite:
		e.wrs[0].Op = verbs.OpRDMAWrite
		return nil
	case kindRead:
		e.wrs[0].Op = verbs.OpRDMARead
		return nil
	case kindAtomic:
		e.wrs[0].Op, e.wrs[0].CompareAdd = verbs.OpAtomicFetchAdd, 1
		return nil
	case kindWatched:
		e.wrs[0].Op = verbs.OpRDMAWrite
		e.wrs[0].Flags |= verbs.SendInline
		return nil
	}
	for i := 0; i < receives; i += e.list {
		if err := e.postRecv(int64(i)); err != nil {
			return err
		}
	}
	return nil
}

// offset is where the i-th message goes.
func (e *rdmaEnd) offset(i int64) int { return int(i%int64(e.slots)) * e.w.size }

// post posts a list of operations, from the i-th on.
func (e *rdmaEnd) post(i int64) error {
	for k := range e.list {
		off := e.offset(i + int64(k))
		e.sge[k] = e.mr.SGE(off, e.w.size)
		e.wrs[k].Remote = e.peer.Remote.Add(off)
	}
	_, err := e.qp.PostSend(e.wrs[:e.list])
	return err
}

// postRecv posts a list of receives, for the i-th message and those behind it.
func (e *rdmaEnd) postRecv(i int64) error {
	for k := range e.list {
		e.rsge[k] = e.mr.SGE(e.offset(i+int64(k)), e.w.size)
	}
	_, err := e.qp.PostRecv(e.rwrs[:e.list])
	return err
}

func (e *rdmaEnd) run(stop *stopper) (result, error) {
	before, err := e.qp.Counters()
	if err != nil {
		return result{}, err
	}
	m := newMeter(e.order, e.w.size)
	err = e.work(stop, m)
	if stop.Err() != nil && errors.Is(err, stop.Err()) {
		err = nil
	}
	after, cerr := e.qp.Counters()
	grown := after.Since(before)
	r := m.result(e.total)
	r.Packets, r.Repeats = int64(grown.Value("sent_pkts")), int64(grown.Value("retrans_pkts"))
	r.RNRNAKs = int64(grown.Value("rcvd_rnr_err"))
	return r, errors.Join(err, cerr)
}

func (e *rdmaEnd) work(stop *stopper, m *meter) error {
	switch {
	case e.w.kind == kindWatched:
		return e.watch(stop, m)
	case e.w.kind.isLatency():
		return e.bounce(stop, m)
	case !e.Server:
		return e.stream(stop, m)
	case e.w.kind == kindSend || e.w.kind == kindList:
		return e.receive(stop)
	}
	<-stop.Done() // one-sided: nobody here has anything to do
	return nil
}

// stream posts operations, as many as may be outstanding, and polls for their completions.
func (e *rdmaEnd) stream(stop *stopper, m *meter) (err error) {
	posted, done := int64(0), int64(0)
	if e.w.waits {
		until, cancel := context.WithDeadline(stop, m.deadline())
		defer cancel()
		stop = &stopper{Context: until}
		defer func() {
			if errors.Is(err, context.DeadlineExceeded) {
				m.expire(done)
				e.total, err = done, nil
			}
		}()
	}
	for m.on(done) {
		for posted-done <= int64(e.w.outstanding-e.list) {
			if err := e.post(posted); err != nil {
				return err
			}
			posted += int64(e.list)
		}
		n, err := e.poll(stop)
		if err != nil {
			return err
		}
		done += int64(n)
		if n == 0 && stop.set.Load() {
			return nil
		}
	}
	e.total = done
	return nil
}

// receive takes messages, and posts a receive for each.
func (e *rdmaEnd) receive(stop *stopper) error {
	posted, came := int64(0), int64(0)
	for !stop.set.Load() {
		n, err := e.poll(stop)
		if err != nil {
			return err
		}
		for came += int64(n); came-posted >= int64(e.list); posted += int64(e.list) {
			if err := e.postRecv(posted); err != nil {
				return err
			}
		}
	}
	return nil
}

// bounce sends a message when one has come. The client sends the first.
func (e *rdmaEnd) bounce(stop *stopper, m *meter) error {
	sent, got := int64(0), int64(0)
	if !e.Server {
		if err := e.post(0); err != nil {
			return err
		}
		sent++
	}
	for e.Server || m.on(got) {
		n, err := 0, error(nil)
		if e.w.kind == kindBlocked {
			n, err = e.cq.Wait(stop, e.wcs[:])
		} else {
			n, err = e.cq.Poll(e.wcs[:])
		}
		if err != nil {
			return err
		}
		if n == 0 && stop.set.Load() {
			return nil
		}
		for i := range n {
			if err := e.wcs[i].Err(); err != nil {
				return err
			}
			if e.wcs[i].Op != verbs.WCRecv {
				continue
			}
			got++
			if err := e.post(sent); err != nil {
				return err
			}
			sent++
			if err := e.postRecv(got); err != nil {
				return err
			}
		}
	}
	e.total = got
	return nil
}

// looks is how often an end looks at its memory before it polls, as perftest does all the time.
const looks = 256

// watch writes a number into the peer's memory when the one before has come from there. The client writes the first.
// The polls are for the completions, and have this end take packets.
func (e *rdmaEnd) watch(stop *stopper, m *meter) error {
	words := e.mr.Bytes()
	came := (*atomic.Uint64)(unsafe.Pointer(&words[e.w.size]))
	e.sge[0] = e.mr.SGE(0, e.w.size)
	e.wrs[0].Remote = e.peer.Remote.Add(e.w.size)
	write := func(n uint64) error {
		binary.NativeEndian.PutUint64(words, n)
		_, err := e.qp.PostSend(e.wrs[:1])
		return err
	}
	next := uint64(1)
	if !e.Server {
		if err := write(next); err != nil {
			return err
		}
	}
	for busy := 0; e.Server || m.on(int64(next)-1); {
		for look := 0; came.Load() != next && look < looks; look++ {
		}
		if came.Load() != next {
			n, err := e.poll(stop)
			if err != nil {
				return err
			}
			if busy++; n == 0 && busy%1024 == 0 && stop.set.Load() {
				return nil
			}
			continue
		}
		if !e.Server {
			e.total = int64(next)
			next++
		}
		if err := write(next); err != nil {
			return err
		}
		if _, err := e.poll(stop); err != nil { // while the number is on its way
			return err
		}
		if e.Server {
			next++
		}
	}
	return nil
}

// poll takes completions, which must be good ones.
func (e *rdmaEnd) poll(stop *stopper) (n int, err error) {
	if e.w.waits {
		n, err = e.cq.Wait(stop, e.wcs[:])
	} else {
		n, err = e.cq.Poll(e.wcs[:])
	}
	for i := range n {
		if err := e.wcs[i].Err(); err != nil {
			return n, err
		}
	}
	return n, err
}
