package exchange

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
)

// maxSilent is how many connections may wait for their first word. The oldest of more is closed.
const maxSilent = 64

// Accept waits for a client: the first connection on which something comes, or which ends. So a stranger who connects and
// says nothing keeps no client out, as with the C programs, where the first to connect is the client. Accept closes l and
// the connections of all others.
func Accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	a := &acceptor{first: make(chan *spoken, 1)}
	err := a.run(l)
	if err != nil {
		return nil, err
	}
	return <-a.first, nil
}

type acceptor struct {
	first chan *spoken

	mu     sync.Mutex
	silent []net.Conn // the oldest first
	over   bool       // there is a first one, or none will be taken
}

// run takes connections until one speaks.
func (a *acceptor) run(l net.Listener) error {
	for {
		c, err := l.Accept()
		a.mu.Lock()
		if err != nil || a.over {
			spoken := a.over
			a.end(nil)
			a.mu.Unlock()
			if err == nil {
				c.Close()
			}
			if spoken {
				return nil
			}
			return err
		}
		if len(a.silent) == maxSilent {
			a.silent[0].Close()
			a.silent = slices.Delete(a.silent, 0, 1)
		}
		a.silent = append(a.silent, c)
		a.mu.Unlock()
		go a.hear(l, c)
	}
}

// hear waits for the first byte of a connection.
func (a *acceptor) hear(l net.Listener, c net.Conn) {
	b := make([]byte, 1)
	n, err := c.Read(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || errors.Is(err, net.ErrClosed) {
		return
	}
	a.end(c)
	a.first <- &spoken{Conn: c, first: b[:n], err: err}
	l.Close() // which ends run
}

// end closes all connections but one. The caller holds a.mu.
func (a *acceptor) end(but net.Conn) {
	a.over = true
	for _, c := range a.silent {
		if c != but {
			c.Close()
		}
	}
	a.silent = nil
}

// spoken is a connection whose first byte, or end, has come.
type spoken struct {
	net.Conn
	first []byte
	err   error
}

func (s *spoken) Read(b []byte) (int, error) {
	switch {
	case len(s.first) > 0 && len(b) > 0:
		b[0], s.first = s.first[0], nil
		return 1, nil
	case s.err != nil:
		return 0, s.err
	}
	return s.Conn.Read(b)
}

// CloseWrite says that nothing follows, where the connection can.
func (s *spoken) CloseWrite() error {
	if w, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}
