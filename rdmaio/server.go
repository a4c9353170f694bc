package rdmaio

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Handler is a method: it returns the answer, or an error whose text the client gets. Each call has a goroutine
// of its own. ctx ends when the client has given the call up, or is gone.
type Handler func(ctx context.Context, c *Call) ([]byte, error)

// Call is a call of a client.
type Call struct {
	Method string
	Arg    []byte // the handler's own

	// In is memory that the client lends to be read, and Out to be written: an io.ReaderAt and an io.WriterAt, whose
	// Size is 0 if there is none. They are used until the handler returns, and no longer: goroutines of
	// its own must have ended. Their calls end with ctx.
	In, Out *Region

	Client netip.AddrPort
}

// Server answers calls. Handle comes before Serve.
type Server struct {
	Config *Config // of the connections; nil is an empty one

	methods map[string]Handler
}

// Handle has a method answer the calls of a name.
func (s *Server) Handle(method string, h Handler) {
	if s.methods == nil {
		s.methods = make(map[string]Handler)
	}
	s.methods[method] = h
}

// Serve accepts clients and answers their calls until ctx ends, or the listener is closed. It returns when all
// connections and handlers have ended: nil, or the listener's error. The listener is the caller's to close.
func (s *Server) Serve(ctx context.Context, l *rdmacm.Listener) error {
	cfg, err := s.Config.orDefault()
	if err != nil {
		return fmt.Errorf("rdmaio: serve: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		work.Go(func() { s.serve(ctx, req, &cfg) })
	}
}

// serve serves one client until the client is gone.
func (s *Server) serve(ctx context.Context, req *rdmacm.Request, cfg *Config) {
	h, err := parseHello(req.PrivateData())
	if err != nil {
		req.Reject([]byte(err.Error()))
		return
	}
	e := new(end)
	setup, cancel := context.WithTimeout(ctx, setupTime)
	_, err = req.Accept(setup, &rdmacm.Config{
		QP: verbs.QPInitAttr{Cap: verbs.QPCap{
			MaxSendWR: cfg.Calls + moves, MaxSendSGE: 1, MaxRecvWR: perSlot * cfg.Calls, MaxRecvSGE: 1,
		}},
		PrivateData: e.hello[:], KeepAlive: cfg.KeepAlive,
		Setup: func(conn *rdmacm.Conn) error { return e.setup(conn, cfg, perSlot*cfg.Calls) },
	})
	cancel()
	if err != nil { // the client has heard of the failure, or is gone
		e.free()
		return
	}
	if e.start(cfg, h) == nil {
		s.answer(ctx, e)
	}
	e.close()
}

// answer answers until the connection or ctx ends.
func (s *Server) answer(ctx context.Context, e *end) {
	ctx, gone := context.WithCancelCause(ctx)
	defer context.AfterFunc(ctx, func() { e.conn.Disconnect() })()
	var work sync.WaitGroup
	defer work.Wait()
	var mu sync.Mutex // guards calls
	type under struct {
		busy   bool
		number uint32
		cancel context.CancelCauseFunc
		sent   chan struct{} // closed when the answer is on its way
	}
	calls := make([]under, e.slots)
	gone(e.receive(func(m *message) error {
		mu.Lock()
		defer mu.Unlock()
		c := &calls[m.slot]
		switch {
		case m.kind == kindCancel:
			if c.busy && c.number == m.number {
				c.cancel(errGivenUp)
			}
			return nil
		case m.kind != kindCall || c.busy:
			return fmt.Errorf("%w: a message of kind %d in slot %d, whose call %d is not answered", ErrProtocol, m.kind, m.slot, c.number)
		}
		if sent := c.sent; sent != nil { // closed, if the client has the answer; no other client has two answers wait
			mu.Unlock()
			<-sent
			mu.Lock()
		}
		ctx, cancel := context.WithCancelCause(ctx)
		sent := make(chan struct{})
		*c = under{true, m.number, cancel, sent}
		work.Go(func() {
			defer close(sent)
			a := s.call(ctx, e, m)
			cancel(errAnswered)
			mu.Lock()
			c.busy = false // the client may call again as soon as the client has the answer
			mu.Unlock()
			_ = e.send(context.Background(), a, true) // or the connection has ended
		})
		return nil
	}))
}

var (
	errGivenUp  = errors.New("the client has given the call up")
	errAnswered = errors.New("the call is answered")
)

// call calls a method and returns its answer.
func (s *Server) call(ctx context.Context, e *end, m *message) *message {
	var body []byte
	err := fmt.Errorf("there is no method %q", m.method)
	if h := s.methods[m.method]; h != nil {
		body, err = h(ctx, &Call{
			Method: m.method, Arg: m.body, Client: e.conn.RemoteAddr(),
			In: e.r.Region(m.in).WithContext(ctx), Out: e.r.Region(m.out).WithContext(ctx),
		})
	}
	a := &message{kind: kindAnswer, slot: m.slot, number: m.number, body: body}
	if room := e.longest - headSize; err == nil && len(body) > room {
		err = fmt.Errorf("the answer has %d bytes: %d at most; the rest belongs into Bulk.Out", len(body), room)
	}
	if err != nil {
		text := err.Error()
		a.kind, a.body = kindError, []byte(text[:min(len(text), e.longest-headSize)])
	}
	return a
}
