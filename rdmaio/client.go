package rdmaio

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// Client calls the methods of a server over one connection. Its methods may be called by several goroutines.
type Client struct {
	end
	bulk *rdmapool.Pool
	free chan *slot
	done chan struct{} // closed when no answers come any more

	mu    sync.Mutex // guards the fields below, and the slots
	all   []slot
	err   error // why there are no more answers
	close sync.Once
}

// slot is the place of a call. Whoever has taken a slot gives the slot back when nothing more is to be sent for the
// call, and the answer has come: the server has receives for the messages of one call, and for a cancel of the call
// before.
type slot struct {
	i      int
	number uint32
	busy   bool        // the answer may still come
	answer chan answer // has the answer, or why no answer comes
}

type answer struct {
	body []byte
	err  error
}

// Bulk is memory that a call lends to the server: In to read from, and Out to write to. Either may be nil. The
// buffers are of Client.Bulk. After an error of the call they belong to the client, which releases them when
// the server can reach them no more.
type Bulk struct{ In, Out *rdmapool.Buffer }

func (b *Bulk) release() {
	release(b.In)
	if b.Out != b.In {
		release(b.Out)
	}
	*b = Bulk{}
}

// RemoteError is the error that a method has returned.
type RemoteError struct{ Method, Text string }

func (e *RemoteError) Error() string { return e.Text }

// Dial connects to a listener whose program has a Server. ctx bounds the attempt.
func Dial(ctx context.Context, addr netip.AddrPort, c *Config) (*Client, error) {
	cfg, err := c.orDefault()
	if err != nil {
		return nil, fmt.Errorf("rdmaio: dial %v: %w", addr, err)
	}
	d := cfg.Dialer
	if d == nil {
		d = new(rdmacm.Dialer)
	}
	cl := &Client{done: make(chan struct{})}
	conn, err := d.Dial(ctx, addr, &rdmacm.Config{
		QP:          verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: perSlot * cfg.Calls, MaxSendSGE: 1, MaxRecvWR: cfg.Calls, MaxRecvSGE: 1}},
		PrivateData: cl.hello[:], KeepAlive: cfg.KeepAlive, Security: cfg.Security,
		Setup: func(conn *rdmacm.Conn) error { return cl.setup(conn, &cfg, cfg.Calls) },
	})
	if err != nil {
		cl.end.free()
		return nil, err
	}
	h, err := parseHello(conn.PrivateData())
	if err == nil {
		err = cl.start(&cfg, h)
	}
	if err == nil {
		cl.bulk, err = rdmapool.New(conn.PD(), &rdmapool.Config{Limit: cfg.Bulk})
	}
	if err != nil {
		cl.end.close()
		return nil, fmt.Errorf("rdmaio: dial %v: %w", addr, err)
	}
	cl.all, cl.free = make([]slot, cl.slots), make(chan *slot, cl.slots)
	for i := range cl.all {
		cl.all[i] = slot{i: i, answer: make(chan answer, 1)}
		cl.free <- &cl.all[i]
	}
	go func() {
		defer close(cl.done)
		cl.fail(cl.receive(cl.take))
	}()
	return cl, nil
}

// Bulk returns the pool of memory that calls lend to the server.
func (c *Client) Bulk() *rdmapool.Pool { return c.bulk }

// Conn returns the client's connection.
func (c *Client) Conn() *rdmacm.Conn { return c.conn }

// Call calls a method and waits for the method's answer; the answer's slice is the caller's. Call waits while as many
// calls are under way as Config says. The error is a *RemoteError if the method has returned an error. If the error is
// ctx's the server is told; the call may have been executed, or may still be executed. If the connection ends, too, the
// call may have been executed, or may still be executed.
func (c *Client) Call(ctx context.Context, method string, arg []byte, lent Bulk) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("rdmaio: call %s: %w", method, err)
	}
	m := message{kind: kindCall, method: method, body: arg, in: spanOf(lent.In), out: spanOf(lent.Out)}
	if n := m.size(); len(method) > 255 || n > c.longest {
		lent.release()
		return fail(verbs.Errorf(verbs.ErrInvalid, "a name of %d bytes and an argument of %d: 255 at most, and %d together; lend the rest as Bulk.In", len(method), len(arg), c.longest-callSize))
	}
	s, err := c.place(ctx)
	if err != nil {
		lent.release()
		return fail(err)
	}
	m.slot, m.number = s.i, s.number
	// A message that has been sent is answered, or the connection ends: so the slot comes back.
	if err := c.send(ctx, &m, true); err != nil {
		c.unsent(s)
		lent.release()
		return fail(err)
	}
	var a answer
	select {
	case a = <-s.answer:
	case <-ctx.Done():
		select {
		case a = <-s.answer:
		default:
			go c.giveUp(s, lent)
			return fail(context.Cause(ctx))
		}
	}
	c.free <- s
	if a.err != nil {
		lent.release()
		if r, ok := a.err.(*RemoteError); ok {
			r.Method = method
		}
		return fail(a.err)
	}
	return a.body, nil
}

// giveUp tells the server that a call is given up, and may have to wait to do so. Then giveUp waits for the answer.
func (c *Client) giveUp(s *slot, lent Bulk) {
	_ = c.send(context.Background(), &message{kind: kindCancel, slot: s.i, number: s.number}, true) // or the connection has ended
	<-s.answer
	lent.release()
	c.free <- s
}

func spanOf(b *rdmapool.Buffer) Span {
	if b == nil {
		return Span{}
	}
	return Span{b.Remote(0), int64(b.Len())}
}

// place takes a slot.
func (c *Client) place(ctx context.Context) (*slot, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var s *slot
	select {
	case s = <-c.free:
	default:
		select {
		case s = <-c.free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.done:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		if s != nil {
			c.free <- s
		}
		return nil, c.err
	}
	s.number++
	s.busy = true
	return s, nil
}

// unsent gives back the slot of a call that was never sent.
func (c *Client) unsent(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.busy { // the connection has ended meanwhile, and fail has said so
		<-s.answer
	}
	s.busy = false
	c.free <- s
}

// take deals with an answer.
func (c *Client) take(m *message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.all[m.slot]
	if !s.busy || m.number != s.number || m.kind != kindAnswer && m.kind != kindError {
		return fmt.Errorf("%w: a message of kind %d to call %d of slot %d, which waits for none", ErrProtocol, m.kind, m.number, m.slot)
	}
	a := answer{body: m.body}
	if m.kind == kindError {
		a = answer{err: &RemoteError{Text: string(m.body)}}
	}
	s.end(a)
	return nil
}

// end ends a call. The caller holds the client's mu.
func (s *slot) end(a answer) {
	s.busy = false
	s.answer <- a
}

// fail tells all who wait that no answer comes. The QP reaches no memory any more, nor does the peer.
func (c *Client) fail(err error) {
	c.conn.Disconnect() // the peer's protocol alone may be broken
	_ = c.r.Close()     // takes the QP to the error state; Close reports a failure there
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for i := range c.all {
		if s := &c.all[i]; s.busy {
			s.end(answer{err: err})
		}
	}
}

// Close ends the connection. Calls that wait return an error, and buffers that they have lent are released. Close
// returns when all calls have returned.
func (c *Client) Close() (err error) {
	c.close.Do(func() {
		c.conn.Disconnect()
		_ = c.r.Close()
		<-c.done
		for range c.all { // no call is left then, also of those that were given up
			<-c.free
		}
		err = c.end.close()
		if berr := c.bulk.Close(); err == nil {
			err = berr
		}
	})
	return err
}
