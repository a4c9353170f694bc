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

// ErrState is in the error of a call that the state of the connection does not allow. The usual
// cause is that the peer has ended the connection, and that the event which says so is on its way.
var ErrState = cm.ErrState

// Connector makes the connections of one device. Its methods, and those of what it makes, may be
// called from any goroutine.
//
//	QP1 --> receive --> machine --> dispatch --> Event
//	QP1 <-- flush   <--     ^------------------- a call
//
// One goroutine receives, keeps time and dispatches. It calls with no lock of the connector held.
type Connector struct {
	dev   *verbs.Device
	gone  func(error)
	start time.Time // of the machine's time

	mu      sync.Mutex // guards the machine, the sending half of qp1, and what Conns have negotiated
	machine *cm.Machine
	qp1     qp1

	wake  chan struct{} // the machine has events or another timeout
	done  chan struct{} // Close was called
	ended chan struct{} // run has returned
}

// Open brings a connector for a device into service. gone is called once, if the device fails
// before Close. Open fails with [verbs.ErrUnsupported] if no connector can serve the device.
func Open(dev *verbs.Device, gone func(error)) (_ *Connector, err error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	c := &Connector{
		dev: dev, gone: gone, start: time.Now(),
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
		Seed:     binary.NativeEndian.Uint64(random(8)),
		ACKDelay: attr.LocalCAAckDelay,
	})
	go c.run()
	return c, nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// Close ends the connector. First it waits a moment for the peers of closed connections to confirm
// the end, since nobody repeats the question afterwards. No Port and no Conn may be in use any more.
func (c *Connector) Close() {
	c.linger()
	close(c.done)
	<-c.ended
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
)

// Limits returns what the device's transport has room for.
func (c *Connector) Limits() Limits {
	return Limits{Connect: MaxConnectData, Accept: MaxAcceptData, Reject: MaxRejectData, LookUp: MaxLookUpData, Answer: MaxAnswerData}
}

// now is the time that the machine runs by.
func (c *Connector) now() time.Duration { return time.Since(c.start) }

// do calls f, which may use the machine, and sends what comes of it.
func (c *Connector) do(f func(now time.Duration) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f(c.now())
	c.flush()
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return err
}
