package rdmaio

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// Defaults and limits that we chose.
const (
	DefaultCalls   = 32      // calls at a time on a connection
	DefaultMessage = 4 << 10 // bytes of a message
	DefaultBulk    = 64 << 20

	minMessage, maxMessage = 256, 1 << 20
	maxSlots               = 1 << 12

	// A slot's messages for which the server needs receives at a time: a call and the call's cancel, and the cancel
	// of the call before, which the server may take after the answer to the call before. Of no earlier call is anything
	// left, since a slot is free only when its cancel was posted and its answer has come. iWARP has no RNR: there a
	// message without a receive ends the connection. A client's send queue has places for as many messages.
	perSlot = 3

	moves = 16 // places in a server's send queue for its READs and WRITEs

	setupTime = 20 * time.Second // for a client to connect
	causeTime = time.Second      // for the connection manager to say why a connection has ended
)

// Config says what a client's connection, or each connection of a server, holds. A nil Config is an empty one.
type Config struct {
	// Calls is how many calls may be under way on a connection at a time, up to 4096; further ones wait. The less of
	// both ends' holds. 0 is DefaultCalls.
	Calls int

	// Message is how long a call may be, with its method's name and 52 bytes, and how long an answer, with 12
	// bytes: from 256 bytes to 1 MiB. The less of both ends' holds. 0 is DefaultMessage.
	Message int

	// Bulk is the limit in bytes of a client's pool of memory for bulk data. 0 is DefaultBulk.
	Bulk int

	KeepAlive time.Duration // of the connections: see rdmacm.Config

	// Dialer and Security are a client's: from where to connect, and whether packets are encrypted. For a
	// server the listener has these settings.
	Dialer   *rdmacm.Dialer
	Security *rdmacm.Security
}

// orDefault fills in the fields that c leaves out.
func (c *Config) orDefault() (Config, error) {
	var d Config
	if c != nil {
		d = *c
	}
	d.Calls, d.Message, d.Bulk = cmp.Or(d.Calls, DefaultCalls), cmp.Or(d.Message, DefaultMessage), cmp.Or(d.Bulk, DefaultBulk)
	if d.Calls < 1 || d.Calls > maxSlots || d.Message < minMessage || d.Message > maxMessage {
		return d, verbs.Errorf(verbs.ErrInvalid, "%d calls and messages of %d bytes: give 1 to %d calls, and %d to %d bytes", d.Calls, d.Message, maxSlots, minMessage, maxMessage)
	}
	return d, nil
}

// end is an end of a connection: it sends and receives messages.
type end struct {
	conn     *rdmacm.Conn
	hello    [helloSize]byte // which setup writes
	r        *Requester
	messages *rdmapool.Pool // messages to send
	in       *verbs.MR      // where messages arrive
	size     int            // of each
	slots    int            // calls at a time
	longest  int            // message that both ends take
}

// setup makes the memory of an end and posts the end's receives. setup is for rdmacm.Config.Setup. The memory outlives
// the connection, which a program may close while receive is at a message. Who gets no connection calls free.
func (e *end) setup(conn *rdmacm.Conn, c *Config, receives int) error {
	e.conn, e.size = conn, c.Message
	appendHello(e.hello[:0], hello{slots: c.Calls, longest: c.Message, selective: conn.QP().RepeatsSelectively()})
	var err error
	if e.in, err = conn.PD().AllocMR(receives*e.size, verbs.AccessLocalWrite); err != nil {
		return err
	}
	for i := range receives {
		if err := e.post(i); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) post(i int) error {
	return e.conn.QP().PostOneRecv(uint64(i), e.in.SGE(i*e.size, e.size))
}

// start begins to work, once the end is connected and the peer's hello has come.
func (e *end) start(c *Config, h hello) error {
	e.slots, e.longest = min(c.Calls, h.slots), min(c.Message, h.longest)
	if h.selective {
		_ = e.conn.QP().PeerRepeatsSelectively() // fails where this QP does not repeat selectively, or has failed
	}
	var err error
	if e.messages, err = rdmapool.New(e.conn.PD(), &rdmapool.Config{Limit: max(DefaultPool, 4*perSlot*c.Message), Access: verbs.AccessLocalWrite}); err != nil {
		return err
	}
	if e.r, err = NewRequester(e.conn.QP(), nil); err != nil {
		e.messages.Close()
	}
	return err
}

// send sends a message. If leave is true send does not wait until the peer has the message.
func (e *end) send(ctx context.Context, m *message, leave bool) error {
	b, err := e.messages.Get(ctx, m.size())
	if err != nil {
		return err
	}
	appendMessage(b.Bytes()[:0], m)
	q, err := e.r.start(ctx, verbs.SendWR{Op: verbs.OpSend}, b, true, leave)
	if err != nil || leave {
		return err
	}
	if err := e.r.wait(ctx, q); err != nil {
		return err
	}
	b.Release()
	return nil
}

// receive hands out messages until the connection ends, and returns why the connection has ended. A message that take
// is given is take's own.
func (e *end) receive(take func(m *message) error) error {
	var wcs [32]verbs.WC
	for {
		n, err := e.conn.RecvCQ().Wait(context.Background(), wcs[:])
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return e.cause(err)
			}
			id := int(wcs[i].ID)
			m, err := parseMessage(bytes.Clone(e.in.Bytes()[id*e.size:][:wcs[i].ByteLen]))
			if err == nil && m.slot >= e.slots {
				err = fmt.Errorf("%w: slot %d of %d", ErrProtocol, m.slot, e.slots)
			}
			if err == nil { // the receive is there again before the message counts
				err = e.post(id)
			}
			if err == nil {
				err = take(&m)
			}
			if err != nil {
				return e.cause(err)
			}
		}
		if err != nil {
			return e.cause(err)
		}
	}
}

// cause says why the connection has ended: the connection manager knows, in a moment.
func (e *end) cause(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	t := time.NewTimer(causeTime)
	defer t.Stop()
	select {
	case <-e.conn.Disconnected():
	case <-t.C:
	}
	return cmp.Or(e.conn.Cause(), err)
}

// close ends the connection and frees the resources of the end. receive has returned, or returns then.
func (e *end) close() error {
	e.conn.Disconnect()
	var err error
	if e.r != nil {
		err = e.r.Close()
	}
	err = errors.Join(err, e.conn.Close())
	err = errors.Join(err, e.free())
	if e.messages != nil {
		err = errors.Join(err, e.messages.Close())
	}
	return err
}

// free frees the memory that setup has made.
func (e *end) free() error {
	if e.in == nil {
		return nil
	}
	return e.in.Close()
}
