package cmtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// The programs of rdma-core 52 to 58 have the older form's flags, but wait for each other over TCP at
// the server's port. The client sends a number, and the server sends it back. They make three rounds
// of connections: one connection, then as many as -c says, then as many again without QPs. Both ends
// have to be given the same -c.

// The messages: 0 before a round, and then the numbers of steps in the table of the newer form.
const syncStart = 0

var syncAfter = map[int]byte{timeConnect: meshConnect, timeDisconnect: meshDisconnect}

const (
	// syncDial is how long a client tries to find out whether the server synchronises.
	syncDial = 2 * time.Second
	// syncFirst is how long the server may take for its first answer.
	syncFirst = 10 * time.Second
)

// classicSync is a client's connection to a server that synchronises. nil is a valid one, to a server
// that does not.
type classicSync struct {
	conn net.Conn
	stop func() bool
	at   netip.AddrPort
}

// openClassicSync returns nil if nobody listens there: the server is of rdma-core up to 51.
func openClassicSync(ctx context.Context, at netip.AddrPort) (*classicSync, error) {
	d := net.Dialer{Timeout: syncDial}
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, ctx.Err()
	}
	s := &classicSync{conn: c, stop: context.AfterFunc(ctx, func() { c.Close() }), at: at}
	c.SetReadDeadline(time.Now().Add(syncFirst))
	return s, nil
}

// await waits until the server has come to step too.
func (s *classicSync) await(step byte) error {
	if s == nil {
		return nil
	}
	b := []byte{step}
	if _, err := s.conn.Write(b); err != nil {
		return s.failed(err)
	}
	if _, err := io.ReadFull(s.conn, b); err != nil {
		return s.failed(err)
	}
	if b[0] != step {
		return fmt.Errorf("the server at TCP %v is at step %d, this client at %d: is it another program?", s.at, b[0], step)
	}
	s.conn.SetReadDeadline(time.Time{})
	return nil
}

func (s *classicSync) failed(err error) error {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return fmt.Errorf("a program listens at TCP %v, but it does not answer as cmtime without -C does: "+
			"the cmtime of rdma-core 59 and later takes -C: %w", s.at, err)
	}
	return fmt.Errorf("the server at TCP %v is gone: its output says why; it has to be given the same -c: %w", s.at, err)
}

func (s *classicSync) close() {
	s.stop()
	s.conn.Close()
}

// listenSync has clients of rdma-core 52 to 58 wait for the server. Their messages come back at once: a client says
// that it is done with a step when all its connections are, and then the server is too.
func (s *server) listenSync(at netip.AddrPort) {
	var lc net.ListenConfig
	l, err := lc.Listen(s.inv.Ctx, "tcp", at.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w (a listener of iWARP has the TCP port of its number)", err)
	}
	if err != nil {
		s.inv.Explain(fmt.Errorf("clients of rdma-core 52 to 58 cannot be served: %w", err))
		return
	}
	s.sync = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(s.inv.Ctx, c)
		}
	}()
}

func echo(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	io.Copy(c, c)
}
