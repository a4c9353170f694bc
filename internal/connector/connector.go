package connector

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// ErrState is in the error of a call that the state of the connection does not allow. Usually the
// peer has ended the connection, and the event of the end is on its way.
var ErrState = cm.ErrState

// ibConnector is the connector of a device whose QP1 programs may use.
//
//	QP1 --> receive --> machine --> dispatch --> Event
//	QP1 <-- flush   <--     ^------------------- a call
//
// One goroutine receives, keeps time and dispatches. It calls with no lock of the connector held.
type ibConnector struct {
	dev     *verbs.Device
	watcher Watcher
	start   time.Time // of the machine's time

	// mu guards the machine, the sending half of qp1, sleepUntil, shrunk, answered, and the agreements of Conns.
	mu         sync.Mutex
	machine    *cm.Machine
	qp1        qp1
	sleepUntil time.Duration // in the machine's time; when run wakes by itself
	shrunk     uint64        // requests for less than the usual path MTU
	answered   chan struct{} // closed once no peer owes an answer; nil unless Close waits for that

	wake  chan struct{} // the machine has events or another timeout
	done  chan struct{} // Close was called
	ended chan struct{} // run has returned
}

// openIB brings a connector for a device with a QP1 into service.
func openIB(dev *verbs.Device, w Watcher) (_ Connector, err error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	c := &ibConnector{
		dev: dev, watcher: w, start: time.Now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}),
	}
	if err := c.qp1.open(dev); err != nil {
		return nil, err
	}
	base, bits, err := c.qp1.gsi.CommIDs()
	if err != nil {
		c.qp1.close()
		return nil, err
	}
	c.machine = cm.New(cm.Config{
		GUID:   binary.BigEndian.Uint64(attr.NodeGUID[:]),
		IDBase: base, IDBits: bits,
		Secret:   [16]byte(c.random(16)),
		ACKDelay: attr.LocalCAAckDelay,
		HasPKey: func(pkey uint16) bool {
			_, ok := pkeyIndex(dev, verbs.PKey(pkey))
			return ok
		},
		LastWords: func(p cm.Path, mad []byte) func() {
			return c.qp1.gsi.LastWords(p.Local, p.Remote, p.TrafficClass, mad)
		},
	})
	dev.Report(c)
	go c.run()
	return c, nil
}

// random returns random bytes. They are the device's, if it has any, so that a simulation replays.
func (c *ibConnector) random(n int) []byte {
	b := make([]byte, n)
	p, ok := c.dev.Provider().(verbs.ProviderRandom)
	if !ok {
		rand.Read(b) // never fails
		return b
	}
	for i := 0; i < n; i += 4 {
		binary.NativeEndian.PutUint32(b[i:], p.Random32())
	}
	return b
}

// Random32 returns a random number.
func (c *ibConnector) Random32() uint32 { return binary.NativeEndian.Uint32(c.random(4)) }

// Close implements Connector. First it waits a moment for the peers of closed connections to confirm
// the end, since nobody repeats the question afterwards.
func (c *ibConnector) Close() {
	c.linger()
	close(c.done)
	<-c.ended
	c.dev.Report(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qp1.close()
}

// Limits are the lengths of private data, in bytes, that each message has room for.
type Limits struct {
	Connect, Accept, Reject int // of RC and UC connections
	LookUp, Answer          int // of UD: Connect there, and Accept or Reject
}

// The limits of the InfiniBand connection manager. A part of a request's room goes to the addresses
// of the two ends.
const (
	MaxConnectData = wire.REQPrivateDataSize - wire.IPCMHeaderSize
	MaxAcceptData  = wire.REPPrivateDataSize
	MaxRejectData  = wire.REJPrivateDataSize
	MaxLookUpData  = wire.SIDRREQPrivateDataSize - wire.IPCMHeaderSize
	MaxAnswerData  = wire.SIDRREPPrivateDataSize

	MaxIBConnectData = wire.REQPrivateDataSize // of AF_IB
	MaxIBLookUpData  = wire.SIDRREQPrivateDataSize
)

// MaxAcceptTime is how long an end that has accepted waits for the peer's word, at most.
const MaxAcceptTime = cm.MaxAnswerTime

// Limits returns the lengths of private data for which the device's transport has room.
func (c *ibConnector) Limits() Limits {
	return Limits{Connect: MaxConnectData, Accept: MaxAcceptData, Reject: MaxRejectData, LookUp: MaxLookUpData, Answer: MaxAnswerData}
}

// now is the time that the machine runs by.
func (c *ibConnector) now() time.Duration { return time.Since(c.start) }

// do calls f, which may use the machine, and sends the machine's messages. do wakes the connector's
// goroutine for events and for an earlier timeout. After a MAD do wakes the goroutine too: the answer may
// be there at once, and the goroutine finds the answer sooner than the device tells of it.
func (c *ibConnector) do(f func(now time.Duration) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f(c.now())
	if c.flush() || c.machine.HasEvent() || c.machine.NextTimeout() < c.sleepUntil {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// hold calls f with the lock held, under which Each reads the fields that f writes.
func (c *ibConnector) hold(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}
