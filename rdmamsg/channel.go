package rdmamsg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// Defaults of Config.
const (
	DefaultDepth     = 32
	DefaultEagerSize = 8192 - headerSize // with its header the message fits two of the largest packets
	DefaultKeepAlive = rdmacm.DefaultKeepAlive
)

// Numbers that we chose.
const (
	maxOffers    = 8  // large messages that one end has offered and the other has not read yet
	maxReads     = 4  // READs under way at a time
	controlSlots = 16 // slots for frames that carry no message

	// spareReceives are posted beyond Depth and maxOffers. A hello and a bye come once. A credit
	// frame returns half of Depth, rounded down, and at least one credit; all that are on their way
	// return at most Depth. So there are at most three of them, which a Depth of 3 needs.
	spareReceives = 5

	// lingerTime is how long Close waits for messages that are not acknowledged.
	lingerTime = time.Second
	// drainTime is how long Close waits for the device to give work requests back.
	drainTime = 5 * time.Second
)

// Causes of errors, beside those of packages verbs, rdmacm and rdmapool.
var (
	// ErrEnded: the connection has ended at the peer's end, or a network between has failed.
	ErrEnded = errors.New("the connection has ended")
	// ErrTooLong: the peer does not take messages of this length.
	ErrTooLong = errors.New("the message is longer than the peer takes")
	// ErrProtocol: the peer has sent a frame that no channel sends.
	ErrProtocol = errors.New("the peer breaks the channel's protocol")
)

// Config sets how much a channel holds. A nil Config is an empty one. The two ends need not agree: each
// end tells the other end how much the end grants.
type Config struct {
	// Depth is how many messages the peer may have sent that this end has not released, and how
	// many small messages this end may have under way. 0 is DefaultDepth.
	Depth int

	// EagerSize is the longest message that is sent eagerly, in bytes. The channel has Depth slots of
	// this size each way. The smaller of the two ends' values counts. 0 is DefaultEagerSize.
	EagerSize int

	// SendPool and RecvPool have the memory of large messages. Pools may be shared by channels on
	// one PD; to share one pool for both directions can deadlock, when both ends have filled
	// their pools with messages to send. nil is a pool of the channel's own, which registers memory when
	// the memory is needed.
	SendPool, RecvPool *rdmapool.Pool

	// SendLimit and RecvLimit are the limits of the channel's own pools in bytes. RecvLimit is also
	// the longest message that this end takes. 0 is rdmapool.DefaultLimit.
	SendLimit, RecvLimit int

	// KeepAlive is after how long a silence the peer's device is asked for a sign of life: see
	// [verbs.QP.SetKeepAlive]. The QPs must allow remote writes. A peer that has died is so noticed
	// within the period and the time that the QP's retries take, which is 1.1 s by the defaults of
	// package rdmacm. 0 is DefaultKeepAlive; negative is never.
	KeepAlive time.Duration

	// Dialer and PrivateData are for Dial; PrivateData is for Accept too. See package rdmacm.
	Dialer      *rdmacm.Dialer
	PrivateData []byte
}

func (c *Config) orDefault() Config {
	var d Config
	if c != nil {
		d = *c
	}
	if d.Depth == 0 {
		d.Depth = DefaultDepth
	}
	if d.EagerSize == 0 {
		d.EagerSize = DefaultEagerSize
	}
	if d.KeepAlive == 0 {
		d.KeepAlive = DefaultKeepAlive
	}
	return d
}

// QPCap returns the capacities that the QP of such a channel needs. A CQ of both queues needs room
// for MaxSendWR + MaxRecvWR completions.
func (c *Config) QPCap() verbs.QPCap {
	d := c.orDefault()
	return verbs.QPCap{
		MaxSendWR: d.Depth + controlSlots + maxReads, MaxSendSGE: 1,
		MaxRecvWR: d.receives(), MaxRecvSGE: 1,
	}
}

func (c *Config) receives() int { return c.Depth + maxOffers + spareReceives }

// Channel sends and receives messages over a QP. Its methods may be called from any goroutine.
type Channel struct {
	qp   *verbs.QP
	conn *rdmacm.Conn // nil if the QP is the caller's
	cfg  Config
	mr   *verbs.MR // receive slots, send slots, control slots
	own  []*rdmapool.Pool

	sending   chan struct{} // held by whoever sends, so that messages are in order
	receiving chan struct{} // held by whoever receives
	sendReady chan struct{} // something that a sender waits for has changed
	recvReady chan struct{} // the inbox has changed
	greeted   chan struct{} // closed when the peer's hello has come

	life context.Context // ends with the channel
	end  context.CancelCauseFunc

	drained   chan struct{} // closed when no work request is left
	stopLoops context.CancelFunc
	closing   sync.Once
	closeErr  error

	mu          sync.Mutex
	err         *Error // why the channel has ended, nil while it has not
	started     bool
	helloed     bool
	isDrained   bool
	shut        bool // by Shutdown: nothing is sent any more
	freed       bool
	outstanding int // work requests whose completion has not come

	// Sending.
	depth       int // messages that the peer has receives for at most
	credits     int // of them, those that this end may use now
	eager       int // the longest message that goes by SEND
	longest     uint64
	freeSend    []int // slots
	freeControl []int
	offers      [maxOffers]offer
	offered     int
	inFlight    uint64 // messages that are not acknowledged
	saying      bool   // a bye is not acknowledged
	delivered   uint64 // messages that are
	allAcked    chan struct{}

	// Receiving.
	messages []Message // one for each receive slot
	inbox    ring      // in the order of arrival
	toRead   ring      // large messages with a buffer, whose READ is not posted yet
	toFinish ring      // IDs of large messages that have been read, and the peer has not been told yet
	starved  bool      // a large message waits for a buffer, so none behind it may take one
	reading  int
	held     int  // messages that the program has not released
	owed     int  // credits that the peer has not been told of
	eof      bool // the peer has said bye

	sendWR [1]verbs.SendWR // to post without allocating; guarded by mu
	recvWR [1]verbs.RecvWR
	sge    [1]verbs.SGE
}

// offer is a large message that the peer may read.
type offer struct {
	buf *rdmapool.Buffer // nil if the place is free
	gen uint32
}

// Error is why a channel has ended, and what became of the messages that this end has sent.
type Error struct {
	Err       error  // the cause
	Delivered uint64 // small messages that are in the peer's memory, and large ones that the peer has read
	InFlight  uint64 // messages that were sent; the peer may have them or not
}

func (e *Error) Error() string {
	s := fmt.Sprintf("rdmamsg: %v", e.Err)
	if e.InFlight > 0 {
		s += fmt.Sprintf(" (%d messages were delivered; the peer may or may not have %d more)", e.Delivered, e.InFlight)
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes a channel of an RC QP, and posts its receives. The QP may be in any state from INIT to
// RTS, and needs the capacities of Config.QPCap. The channel takes every completion of the QP's
// CQs, so no other QP may use them. Call Start once the QP is in RTS.
//
// Close takes the QP to the error state, and leaves it to the caller to destroy.
func New(qp *verbs.QP, c *Config) (*Channel, error) {
	cfg := c.orDefault()
	if cfg.Depth < 1 || cfg.EagerSize < 1 {
		return nil, fmt.Errorf("rdmamsg: new: %w: a depth of %d and an eager size of %d: both are at least 1", verbs.ErrInvalid, cfg.Depth, cfg.EagerSize)
	}
	if _, init, err := qp.Query(); err != nil {
		return nil, fmt.Errorf("rdmamsg: new: %w", err)
	} else if need := cfg.QPCap(); init.Type != verbs.QPTypeRC || init.SRQ != nil || init.Cap.MaxSendWR < need.MaxSendWR ||
		init.Cap.MaxRecvWR < need.MaxRecvWR || init.Cap.MaxSendSGE < 1 || init.Cap.MaxRecvSGE < 1 {
		return nil, fmt.Errorf("rdmamsg: new: %w: the QP must be RC, without SRQ, with at least %d sends and %d receives", verbs.ErrInvalid, need.MaxSendWR, need.MaxRecvWR)
	}
	ch := &Channel{
		qp: qp, cfg: cfg,
		sending: make(chan struct{}, 1), receiving: make(chan struct{}, 1),
		sendReady: make(chan struct{}, 1), recvReady: make(chan struct{}, 1),
		greeted: make(chan struct{}), drained: make(chan struct{}),
	}
	ch.life, ch.end = context.WithCancelCause(context.Background())
	if err := ch.build(); err != nil {
		ch.free()
		return nil, fmt.Errorf("rdmamsg: new: %w", err)
	}
	return ch, nil
}

// build registers the slots and posts the receives.
func (c *Channel) build() error {
	for _, p := range []struct {
		pool  **rdmapool.Pool
		limit int
	}{{&c.cfg.SendPool, c.cfg.SendLimit}, {&c.cfg.RecvPool, c.cfg.RecvLimit}} {
		if *p.pool != nil {
			continue
		}
		own, err := rdmapool.New(c.qp.PD(), &rdmapool.Config{Limit: p.limit})
		if err != nil {
			return err
		}
		*p.pool = own
		c.own = append(c.own, own)
	}
	receives := c.cfg.receives()
	size := (receives+c.cfg.Depth)*c.slotSize() + controlSlots*headerSize
	var err error
	if c.mr, err = c.qp.PD().AllocMR(size, verbs.AccessLocalWrite); err != nil {
		return err
	}
	for i := range c.cfg.Depth {
		c.freeSend = append(c.freeSend, i)
	}
	for i := range controlSlots {
		c.freeControl = append(c.freeControl, i)
	}
	c.messages = make([]Message, receives)
	c.inbox, c.toRead, c.toFinish = makeRing(receives), makeRing(receives), makeRing(receives)
	for i := range c.messages {
		c.messages[i] = Message{c: c, slot: i}
		if err := c.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Channel) slotSize() int           { return (headerSize + c.cfg.EagerSize + 63) &^ 63 }
func (c *Channel) recvSlot(i int) int      { return i * c.slotSize() }
func (c *Channel) sendSlot(i int) int      { return (c.cfg.receives() + i) * c.slotSize() }
func (c *Channel) controlSlot(i int) int   { return c.sendSlot(c.cfg.Depth) + i*headerSize }
func (c *Channel) bytes(off, n int) []byte { return c.mr.Bytes()[off : off+n : off+n] }
func (c *Channel) maxMessage() uint64 {
	return min(uint64(c.cfg.RecvPool.Limit()), verbs.MaxMessageSize)
}

// Conn returns the connection of a channel from Dial or Accept, and nil of one from New.
func (c *Channel) Conn() *rdmacm.Conn { return c.conn }

// SendPool returns the pool from which large messages are sent: where to get buffers for SendBuffer.
func (c *Channel) SendPool() *rdmapool.Pool { return c.cfg.SendPool }

// RecvPool returns the pool into which large messages are received.
func (c *Channel) RecvPool() *rdmapool.Pool { return c.cfg.RecvPool }

// Start tells the peer how much this end grants, and waits until the peer has told the same. The QP
// must be in RTS. If ctx ends before, the channel is of no use any more.
func (c *Channel) Start(ctx context.Context) error {
	c.mu.Lock()
	if c.err != nil || c.started {
		err := error(c.err)
		if c.err == nil {
			err = fmt.Errorf("rdmamsg: start: %w: it was started before", verbs.ErrState)
		}
		c.mu.Unlock()
		return err
	}
	c.started = true
	var loops context.Context
	loops, c.stopLoops = context.WithCancel(context.Background())
	go c.loop(loops, c.qp.RecvCQ())
	if c.qp.SendCQ() != c.qp.RecvCQ() {
		go c.loop(loops, c.qp.SendCQ())
	}
	c.postControl(header{typ: frameHello, length: c.maxMessage(), remote: verbs.RemoteAddr{VA: uint64(c.cfg.Depth)<<32 | uint64(c.cfg.EagerSize)}})
	c.mu.Unlock()
	if err := c.qp.SetKeepAlive(c.cfg.KeepAlive); err != nil && !errors.Is(err, verbs.ErrUnsupported) {
		return fmt.Errorf("rdmamsg: start: %w", err)
	}
	select {
	case <-c.greeted:
		return nil
	case <-c.life.Done():
		return c.failure()
	case <-ctx.Done():
		return fmt.Errorf("rdmamsg: start: no hello from the peer: %w", context.Cause(ctx))
	}
}

// failure returns why the channel has ended. The channel must have ended.
func (c *Channel) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done is closed when the channel has ended, in whatever way. Messages that have come before may
// still be received.
func (c *Channel) Done() <-chan struct{} { return c.life.Done() }

// Err returns why the channel has ended, as an [*Error], and nil while the channel has not ended.
func (c *Channel) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	return c.err
}

// fail ends the channel. fail is called with mu held. Posted work requests come back by completions.
func (c *Channel) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = &Error{Err: err, Delivered: c.delivered, InFlight: c.inFlight}
	c.end(c.err)
	// The error of a QP that is destroyed already does not matter: nothing comes back then.
	if c.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState) != nil || !c.started {
		c.outstanding = 0
	}
	c.checkDrained()
}

// checkDrained takes note when the last work request has come back.
func (c *Channel) checkDrained() {
	if c.err == nil || c.outstanding > 0 || c.isDrained {
		return
	}
	c.isDrained = true
	close(c.drained)
	if c.stopLoops != nil {
		c.stopLoops()
	}
	for i := range c.offers { // the peer cannot read them any more
		if o := &c.offers[i]; o.buf != nil {
			o.buf.Release()
			o.buf = nil
		}
	}
	for i := range c.messages {
		if m := &c.messages[i]; m.buf != nil && m.state != messageReady && m.state != messageHeld {
			m.buf.Release()
			m.buf = nil
		}
	}
}

// Close ends the channel and frees the channel's memory; of a channel from Dial or Accept, Close closes
// the connection too. Close waits up to a second until the peer has the sent messages, and returns an
// [*Error] if messages remain. Calls that wait return an error with verbs.ErrClosed in it. Messages that were
// received stay valid until they are released, and so do buffers from SendPool.
// To close a second time does nothing, and returns the same.
func (c *Channel) Close() error {
	c.closing.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Channel) close() error {
	var failed []error
	if c.Err() == nil && c.wasGreeted() {
		ctx, cancel := context.WithTimeout(context.Background(), lingerTime)
		err := c.Shutdown(ctx)
		cancel()
		var e *Error
		if !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &e) {
			failed = append(failed, err) // otherwise the Error below says what is missing, if anything is
		}
	}
	c.mu.Lock()
	c.fail(fmt.Errorf("the channel is %w at this end", verbs.ErrClosed))
	if c.err.InFlight > 0 {
		failed = append(failed, c.err)
	}
	started := c.started
	c.mu.Unlock()
	if started {
		limit := time.NewTimer(drainTime)
		defer limit.Stop()
		select {
		case <-c.drained:
		case <-limit.C:
			failed = append(failed, c.giveUp())
		}
	}
	c.dropUnread()
	if c.conn != nil {
		failed = append(failed, c.conn.Close())
	}
	failed = append(failed, c.freeUnlessHeld())
	return errors.Join(failed...)
}

// giveUp ends a channel whose device does not complete the posted work requests.
func (c *Channel) giveUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := fmt.Errorf("rdmamsg: close: the device has not given %d work requests back in %v", c.outstanding, drainTime)
	c.outstanding = 0
	c.checkDrained()
	return err
}

// wasGreeted reports whether the peer's hello has come.
func (c *Channel) wasGreeted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.helloed
}

// dropUnread gives back the buffers of messages that nobody has received.
func (c *Channel) dropUnread() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.inbox.n > 0 {
		if m := &c.messages[c.inbox.pop()]; m.buf != nil {
			m.buf.Release()
			m.buf = nil
		}
	}
	c.shut = true
	c.eof = false
}

// freeUnlessHeld frees the slots, or leaves the freeing to the release of the last message.
func (c *Channel) freeUnlessHeld() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed = true
	if c.held > 0 {
		return nil
	}
	return c.free()
}

func (c *Channel) free() error {
	var failed []error
	if c.mr != nil {
		failed = append(failed, c.mr.Close())
	}
	for _, p := range c.own {
		failed = append(failed, p.Close())
	}
	return errors.Join(failed...)
}

// ring is a queue of receive slots, or of as many IDs.
type ring struct {
	slots   []int
	head, n int
}

func makeRing(size int) ring { return ring{slots: make([]int, size)} }

func (r *ring) push(slot int) {
	r.slots[(r.head+r.n)%len(r.slots)] = slot
	r.n++
}

func (r *ring) first() int { return r.slots[r.head] }

func (r *ring) pop() int {
	slot := r.slots[r.head]
	r.head = (r.head + 1) % len(r.slots)
	r.n--
	return slot
}
