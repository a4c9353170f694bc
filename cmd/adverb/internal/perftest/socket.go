package perftest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
)

const (
	// departure is how long an end that is done stays for a peer that may still need it.
	departure = time.Second
	// mourning is how long a test goes on without its peer: the peer's last packets may still be on their way.
	mourning = 2 * time.Second
	// maxUnread is how many bytes of a peer may wait to be received.
	maxUnread = 1 << 20
)

var (
	errPeerGone = errors.New("the peer ended the exchange: its output says why")
	errFlood    = errors.New("the peer says more than the programs have to say: is it the same program?")
)

// socketPipe is a TCP connection. A goroutine reads it, so that the end of the peer is noticed while
// the test runs.
type socketPipe struct {
	conn net.Conn

	mu     sync.Mutex
	more   sync.Cond
	unread []byte
	err    error // why no more will come
	done   chan struct{}
}

// newSocketPipe makes a pipe that calls lost some time after the peer has ended it.
func newSocketPipe(ctx context.Context, conn net.Conn, lost func(error)) *socketPipe {
	p := &socketPipe{conn: conn, done: make(chan struct{})}
	p.more.L = &p.mu
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	go func() {
		defer close(p.done)
		defer stop()
		p.read()
		time.AfterFunc(mourning, func() { lost(errPeerGone) })
	}()
	return p
}

func (p *socketPipe) read() {
	b := make([]byte, 4096)
	for {
		n, err := p.conn.Read(b)
		p.mu.Lock()
		p.unread = append(p.unread, b[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			err = errPeerGone
		case err == nil && len(p.unread) > maxUnread:
			err = errFlood
		}
		p.err = err
		p.mu.Unlock()
		p.more.Broadcast()
		if err != nil {
			return
		}
	}
}

// send sends b by one write, since the C programs read it by one read.
func (p *socketPipe) send(b []byte) error {
	_, err := p.conn.Write(b)
	return err
}

func (p *socketPipe) receive(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.unread) < len(b) {
		if p.err != nil {
			return p.err
		}
		p.more.Wait()
	}
	p.unread = p.unread[copy(b, p.unread):]
	return nil
}

func (p *socketPipe) leave() error {
	if c, ok := p.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		t := time.NewTimer(departure)
		defer t.Stop()
		select {
		case <-p.done:
		case <-t.C:
		}
	}
	err := p.conn.Close()
	<-p.done
	return err
}

// dialTCP connects to the server.
func dialTCP(ctx context.Context, host string, port int, source netip.Addr) (net.Conn, error) {
	conn, lookup, err := clib.DialTCP(ctx, host, port, source)
	switch {
	case lookup != nil:
		return nil, fail(lookup, "Problem in resolving basic address and port")
	case err != nil:
		return nil, fail(fmt.Errorf("%w: is the server running there, with the same -p?", err), "Couldn't connect to %s:%d", host, port)
	}
	return conn, nil
}

// listenTCP listens for the client.
func listenTCP(ctx context.Context, port int, source netip.Addr) (net.Listener, error) {
	host := ""
	if source.IsValid() {
		if err := clib.CheckZone(source); err != nil {
			return nil, fail(err, "Couldn't listen to port %d", port)
		}
		host = source.String()
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fail(err, "Couldn't listen to port %d", port)
	}
	return l, nil
}

// acceptTCP waits for the client, who speaks first, and closes l.
func acceptTCP(ctx context.Context, l net.Listener) (net.Conn, error) {
	conn, err := exchange.Accept(ctx, l)
	if err != nil {
		return nil, fail(err, "accept() failed")
	}
	return conn, nil
}
