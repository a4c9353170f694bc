package rsocket

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Conn is a connection: a stream of bytes each way. It is a net.Conn, and its methods may be called by
// several goroutines at a time.
//
// A Conn has no goroutine of its own. Calls of Read and Write take the completions, each for all, and
// a call that has to wait sleeps until the device tells of one.
type Conn struct {
	cm            *rdmacm.Conn
	qp            *verbs.QP
	cq            *verbs.CQ // of both queues
	local, remote *net.TCPAddr
	cfg           Config

	bySend bool // words go by SENDs, since the device speaks iWARP: see wire.go

	// in is the memory that the peer writes to: the target SGL, the iomap, the receive ring. out is our device's
	// alone: control messages, the send ring, the words that come by SENDs.
	in, out         *verbs.MR
	inRing, outRing []byte
	inStart         int // where the receive ring begins

	rmu, wmu sync.Mutex // held by one call that reads, and by one that writes, for as long as it takes

	// posting is held while a message of data is taken from the credits and posted, and so by whoever
	// says that no more follows.
	posting sync.Mutex
	sending message

	lending chan struct{} // has a value while a call of ReadFrom lends pieces of the send ring, and when that is freed
	reaches bool          // the latest bytes, of minReach or more, went straight to the peer's ring; wmu guards it

	mu sync.Mutex // guards the fields below; it may be taken while all other locks are held
	state
	r, w, f side // who waits: to read, to write, and for the end of sending
	wcs     [8]verbs.WC

	closing  chan struct{} // closed by Close
	finished chan struct{} // closed when nothing is left
	linger   time.Duration // how long Close waits; negative is the default
}

// state has the fields that the lock guards.
type state struct {
	err                      error // why nothing works any more
	dead                     bool  // nothing comes out of the queue any more
	lastDone                 bool  // the peer has our last message
	closed, rclosed, wclosed bool  // Close, CloseRead, CloseWrite were called
	peerShut, peerGone       bool  // the peer sends no more; it does not receive either

	// The receiving direction. The peer fills the ring, which is two halves, without a gap.
	rpos      int    // where the next byte to read is
	unread    int    // bytes
	granted   int    // bytes that the peer may still write
	freed     int    // bytes of the ring that are read and not granted again
	grantAt   int    // where in the ring the next grant begins
	received  uint16 // messages of data, mod 2^16 as all numbers of messages
	creditsAt uint16 // with how many of them the peer is told that it may send more
	consumed  int    // receives that are used up and not posted again
	recvWRs   []verbs.RecvWR
	recvSlot  int // of the next receive's word

	// The sending direction.
	target     extent // where the next byte goes
	next       int    // the entry of the target SGL with the next target
	sent       uint16 // messages of data
	limit      uint16 // of sent
	reserve    uint16 // receives of the peer that are for messages of our own
	wpos       int    // where in the ring the next byte goes
	posted     uint32 // bytes of data, mod 2^32
	done       uint32 // those of them that have arrived
	wrs        uint32 // work requests of data, mod 2^wrBits
	wrsDone    uint32
	unsigned   int // bytes since the latest work request that is signaled
	unsigWRs   uint32
	bulk       bool   // the call that writes takes the completions for one that reads
	readLeaves bool   // a call that reads sleeps until the call that writes is done
	lent       bool   // a source fills a piece of the ring
	lentAt     uint32 // posted, before that
	want       int    // how many bytes of the ring the writer wants free at least

	// Messages of our own. One fetches up to four numbers, so they may wait.
	controls   int              // that may be posted now
	controlSeq uint32           // of the next one's memory
	order      binary.ByteOrder // of the peer's entries, and of words by SENDs
	peerSGL    extent           // the peer's target SGL
	peerEntry  int              // the entry to write next
	control    message

	maps []*Mapping // ours, by their index in the peer's iomap; nil where there is none
}

// A work request's ID has its kind, in bits 62 and 63, and the counts that its completion acknowledges:
// bits 32 to 61 are the number of work requests of data, and the others that of bytes.
const (
	idData    = 0 << 62
	idControl = 1 << 62
	idRecv    = 2 << 62
	idLast    = 3 << 62 // a control message after which nothing follows
	idKind    = 3 << 62

	wrBits = 30
	wrMask = 1<<wrBits - 1
)

// newConn makes the end of a connection whose QP is made and not connected yet: it allocates the memory,
// posts the receives and writes the hello.
func newConn(cm *rdmacm.Conn, cfg Config, hello []byte) (*Conn, error) {
	c := &Conn{cm: cm, qp: cm.QP(), cq: cm.RecvCQ(), cfg: cfg, closing: make(chan struct{}), finished: make(chan struct{}), lending: make(chan struct{}, 1), linger: -1}
	c.order = binary.LittleEndian // until the peer says another
	c.bySend = cm.Device().Info().Transport == verbs.TransportIWARP
	c.inStart = (sglSize*sgeSize + cfg.Maps*iomapEntrySize + lineSize - 1) &^ (lineSize - 1)
	var err error
	if c.in, err = cm.AllocMR(c.inStart+cfg.RecvBuffer, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	size := outStart + cfg.SendBuffer
	if c.bySend {
		size = c.wordOffset(cfg.receives())
	}
	if c.out, err = cm.AllocMR(size, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	c.inRing = c.in.Bytes()[c.inStart:]
	c.outRing = c.out.Bytes()[outStart:][:cfg.SendBuffer]
	if err := c.makeReceives(); err != nil {
		return nil, err
	}
	c.granted = cfg.RecvBuffer // all of it, so that nothing need be said before the first half is read
	c.creditsAt = c.creditStep()
	c.controls = controls
	c.next, c.peerEntry = 1, 1
	c.r.wake, c.w.wake, c.f.wake = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	appendHello(hello[:0], &parameters{
		credits: uint16(cfg.Depth), maps: cfg.Maps,
		sgl:  extent{c.in.Remote(0), sglSize},
		data: extent{c.in.Remote(c.inStart), uint32(cfg.RecvBuffer)},
	})
	return c, nil
}

// takeHello takes the peer's parameters.
func (c *Conn) takeHello(h *parameters) {
	if c.bySend {
		c.reserve = h.credits / 2
	}
	c.target, c.limit = h.data, h.credits-c.reserve
	c.peerSGL, c.order = h.sgl, order(h.bigEndian)
	c.maps = make([]*Mapping, h.maps)
}

// start makes the connection one that works.
func (c *Conn) start() {
	c.local = net.TCPAddrFromAddrPort(c.cm.LocalAddr())
	c.remote = net.TCPAddrFromAddrPort(c.cm.RemoteAddr())
	countEnd(c.cm.LocalAddr(), 1)
}

// LocalAddr returns this end's address and port, a *net.TCPAddr: the port is one of the connection manager's,
// in RDMA_PS_TCP.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address and port, a *net.TCPAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// QP returns the QP under the connection, for its counters and its attributes. The program must not
// post to it.
func (c *Conn) QP() *verbs.QP { return c.qp }

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	err := c.SetReadDeadline(t)
	if err == nil {
		err = c.SetWriteDeadline(t)
	}
	return err
}

// SetReadDeadline sets the time from which Read and its like fail with os.ErrDeadlineExceeded, also
// those that wait already. The zero time sets none.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.r.deadline, t) }

// SetWriteDeadline sets the time from which Write and its like fail with os.ErrDeadlineExceeded, also
// those that wait already. Some of the data may then have been sent, as n says. The zero time sets none.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.w.deadline, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	select {
	case <-c.closing:
		return c.opError("set", net.ErrClosed)
	default:
		d.set(t)
		return nil
	}
}

// setError makes the error of a call that sets something, which is of no use after Close: that destroys the QP sooner or
// later.
func (c *Conn) setError(err error) error {
	select {
	case <-c.closing:
		err = net.ErrClosed
	default:
	}
	return c.opError("set", err)
}

// SetKeepAlive turns the questions for signs of life on or off.
func (c *Conn) SetKeepAlive(on bool) error {
	period := time.Duration(0)
	if on {
		if period = c.cfg.KeepAlive; period < 0 {
			period = DefaultKeepAlive
		}
	}
	return c.setError(c.qp.SetKeepAlive(period))
}

// SetKeepAlivePeriod sets after how long a silence the peer's device is asked for a sign of life.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	return c.setError(c.qp.SetKeepAlive(max(d, 0)))
}

// SetNoDelay does nothing: every Write is sent at once.
func (c *Conn) SetNoDelay(bool) error { return c.setError(nil) }

// SetLinger says how long Close waits until the peer's device has everything: so many seconds. 0 has Close
// drop the bytes that have not arrived. Negative, the default, is 0.1 s, after which sending goes on in the
// background.
func (c *Conn) SetLinger(sec int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = time.Duration(sec) * time.Second
	return c.setError(nil)
}
