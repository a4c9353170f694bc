package pingpong

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
)

// xsrqPatience is how long the rest of a peer's address may take, once its first byte has come.
var xsrqPatience = 10 * time.Second // tests have less

// maxCallers is how many connections beyond the clients may be open at a time. Later ones wait to be taken.
const maxCallers = 64

var errXSRQGone = errors.New("the peer closed the TCP connection: its output says why")

// xsrqCaller is a connection on which a client has told its end.
type xsrqCaller struct {
	conn net.Conn
	end  xsrqEnd
	err  error
}

// readXSRQEnd reads a peer's end. Another program says less, and then waits for an answer.
func readXSRQEnd(conn net.Conn) (xsrqEnd, error) {
	b := make([]byte, xsrqMessageSize)
	n, err := conn.Read(b)
	if err == nil && n < len(b) {
		conn.SetReadDeadline(time.Now().Add(xsrqPatience))
		var m int
		m, err = io.ReadFull(conn, b[n:])
		n += m
		conn.SetReadDeadline(time.Time{})
	}
	line := fmt.Sprintf("%d/%d: Couldn't read remote address", n, len(b))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return xsrqEnd{}, fail(fmt.Errorf("read the peer's address: no more came for %v: %w", xsrqPatience, exchange.ErrBadEnd), "%s", line)
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return xsrqEnd{}, fail(errXSRQGone, "%s", line)
	case err != nil:
		return xsrqEnd{}, fail(err, "client read: %v\n%s", clib.SystemError(err), line)
	}
	e, err := parseXSRQEnd(b)
	if err != nil {
		return e, fail(fmt.Errorf("read the peer's address: %q came: %w", bytes.TrimRight(b, "\x00"), err), "%s", line)
	}
	return e, nil
}

func listenXSRQ(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fail(err, "Couldn't listen to port %d", port)
	}
	return l, nil
}

// acceptAll calls f for each client in the order in which their ends come, and closes l. A stranger who connects and
// says nothing, or leaves without a word, keeps no client out.
func acceptAll(ctx context.Context, l net.Listener, clients int, f func(xsrqCaller) error) error {
	var mu sync.Mutex
	open := map[net.Conn]bool{} // whose end has not come
	callers, failed, quit := make(chan xsrqCaller), make(chan error, 1), make(chan struct{})
	room := make(chan struct{}, clients+maxCallers)
	defer func() {
		close(quit)
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for c := range open {
			c.Close()
		}
		open = nil
	}()
	hear := func(c net.Conn) {
		e, err := readXSRQEnd(c)
		mu.Lock()
		delete(open, c)
		mu.Unlock()
		<-room
		if errors.Is(err, errXSRQGone) || errors.Is(err, net.ErrClosed) {
			c.Close()
			return
		}
		select {
		case callers <- xsrqCaller{c, e, err}:
		case <-quit:
			c.Close()
		}
	}
	go func() {
		for {
			select {
			case room <- struct{}{}:
			case <-quit:
				return
			}
			c, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			mu.Lock()
			if over := open == nil; over {
				mu.Unlock()
				c.Close()
				return
			}
			open[c] = true
			mu.Unlock()
			go hear(c)
		}
	}()
	for i := range clients {
		select {
		case c := <-callers:
			if err := f(c); err != nil {
				return err
			}
		case err := <-failed:
			return fail(err, "accept() failed for client %d", i)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// mourning is how long a run goes on without its peer. The end of the QPs, which follows, says more.
const mourning = time.Second

// await waits for the peer's farewell in the background, and ends the run if the connection ends before.
func (m *xsrqMember) await(end func(error)) {
	m.farewell = make(chan struct{})
	gone := func(cause error, format string, args ...any) {
		time.AfterFunc(mourning, func() { end(fail(cause, format, args...)) })
	}
	go func() {
		b := make([]byte, len(xsrqFarewell))
		n, err := io.ReadFull(m.conn, b)
		switch {
		case errors.Is(err, net.ErrClosed): // the run has ended
			return
		case err != nil:
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				err = errXSRQGone
			}
			gone(err, "%d/%d: Couldn't read remote termination ack", n, len(b))
		case string(b) != xsrqFarewell:
			gone(fmt.Errorf("%q came: %w", b, exchange.ErrBadEnd), "Invalid termination ack was accepted")
		default:
			close(m.farewell)
		}
	}()
}

// part takes leave of the peers. A server waits for all clients, since each may still get messages by the connections of
// the others. So a client waits for the server.
func (x *xsrq) part() error {
	say := func() error {
		for _, m := range x.members {
			if _, err := io.WriteString(m.conn, xsrqFarewell); err != nil {
				return fail(err, "Couldn't send termination ack")
			}
		}
		return nil
	}
	if x.flags.host != "" {
		if err := say(); err != nil {
			return err
		}
	}
	for _, m := range x.members {
		select {
		case <-m.farewell:
		case <-x.ctx.Done():
			return context.Cause(x.ctx)
		}
	}
	if x.flags.host == "" {
		return say()
	}
	return nil
}
