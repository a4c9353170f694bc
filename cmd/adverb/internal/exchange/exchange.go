// Package exchange is how two programs that have no connection manager learn of each other's QPs:
// over TCP, in the messages of the pingpong programs.
package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
)

var errPeerGone = errors.New("the peer closed the TCP connection: its output says why")

// Error is a failure of the exchange: the C program's line, and the cause.
type Error struct {
	Line  string
	Cause error
}

func (e *Error) Error() string { return e.Line + ": " + e.Cause.Error() }
func (e *Error) Unwrap() error { return e.Cause }

func fail(cause error, format string, args ...any) error {
	if cause == io.EOF || cause == io.ErrUnexpectedEOF {
		cause = errPeerGone
	}
	return &Error{fmt.Sprintf(format, args...), cause}
}

// Exchange is one side of an exchange. Both sides send as many messages, one for each of Local.
type Exchange struct {
	Local   []End
	Connect func(remote []End) error

	wait time.Duration // for the rest of a message that has begun to come; 0: restPatience
}

// restPatience is how long the rest of a peer's addresses may take.
const restPatience = 10 * time.Second

func (x *Exchange) patience() time.Duration { return cmp.Or(x.wait, restPatience) }

// hasSeveral reports whether this is the exchange of srq_pingpong, whose error lines differ.
func (x *Exchange) hasSeveral() bool { return len(x.Local) > 1 }

// Client sends the local ends to the server at host, receives the server's, and calls x.Connect.
// The server is ready to receive when it answers. Unlike the C program's client, ours says that it
// is done only after x.Connect has succeeded. If x.Connect fails, then the server learns so, and
// does not wait for a message for ever.
func (x *Exchange) Client(ctx context.Context, host string, port int) error {
	conn, err := Dial(ctx, host, port)
	if err != nil {
		return err
	}
	return x.call(ctx, conn)
}

// call is the client's part on a connection, which it closes.
func (x *Exchange) call(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(x.messages()); err != nil {
		return fail(err, "Couldn't send local address")
	}
	const line = "client read/write: %v\nCouldn't read/write remote address"
	remote, failed, err := x.readEnds(conn)
	switch {
	case errors.Is(err, ErrBadEnd):
		return fail(err, "%s", failed)
	case err != nil && x.hasSeveral():
		return fail(err, "client read: %v\n%s", clib.SystemError(err), failed)
	case err != nil:
		return fail(err, line, clib.SystemError(err))
	}
	if err := x.Connect(remote); err != nil {
		return err
	}
	_, err = io.WriteString(conn, doneMessage)
	switch {
	case err != nil && x.hasSeveral():
		return fail(err, "client write: %v", clib.SystemError(err))
	case err != nil:
		return fail(err, line, clib.SystemError(err))
	}
	return nil
}

// Dial connects to the server of a pingpong program. Its error has the C program's line.
func Dial(ctx context.Context, host string, port int) (net.Conn, error) {
	conn, lookup, err := clib.DialTCP(ctx, host, port, netip.Addr{})
	switch {
	case lookup != nil:
		return nil, fail(lookup, "Name or service not known for %s:%d", host, port)
	case err != nil:
		return nil, fail(fmt.Errorf("%w: is the server running there, with the same -p?", err), "Couldn't connect to %s:%d", host, port)
	}
	return conn, nil
}

func (x *Exchange) messages() []byte {
	var b []byte
	for _, e := range x.Local {
		b = append(b, e.Message()...)
	}
	return b
}

// readEnds reads the peer's messages. failed is the C program's line about err.
func (x *Exchange) readEnds(conn net.Conn) (remote []End, failed string, err error) {
	b := make([]byte, len(x.Local)*MessageSize)
	defer conn.SetReadDeadline(time.Time{})
	for n := 0; n < len(b); {
		m, err := conn.Read(b[n:])
		n += m
		if i := strayByte(b[:n]); i >= 0 {
			first := i - i%MessageSize
			return nil, x.readLine(min(n-first, MessageSize), first/MessageSize), badEnd(b[first:n])
		}
		switch {
		case n == len(b):
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, x.readLine(n%MessageSize, n/MessageSize), fmt.Errorf("read %d bytes of addresses from the peer: %d came, and no more for %v: %w",
				len(b), n, x.patience(), ErrBadEnd)
		case err == io.EOF && n > 0:
			return nil, x.readLine(n%MessageSize, n/MessageSize), io.ErrUnexpectedEOF
		case err != nil:
			return nil, x.readLine(n%MessageSize, n/MessageSize), err
		}
		// A program says all that it has to say at once. A client may come any time, so only then does time count.
		conn.SetReadDeadline(time.Now().Add(x.patience()))
	}
	for m := range slices.Chunk(b, MessageSize) {
		e, err := parseEnd(m)
		if err != nil {
			return nil, x.readLine(MessageSize, len(remote)), badEnd(m)
		}
		remote = append(remote, e)
	}
	return remote, "", nil
}

// readLine says that only n bytes of a message came, or that all of them came and are wrong.
func (x *Exchange) readLine(n, message int) string {
	line := fmt.Sprintf("%d/%d: Couldn't read remote address", n, MessageSize)
	if x.hasSeveral() {
		line += fmt.Sprintf(" [%d]", message)
	}
	return line
}

// Listen listens for a client of the exchange.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fail(err, "Couldn't listen to port %d", port)
	}
	return l, nil
}

// Server waits for a client, receives its ends, and calls x.Connect. Only then does it send the
// local ends, since the client sends its first message at once. Server closes l.
func (x *Exchange) Server(ctx context.Context, l net.Listener) error {
	conn, err := Accept(ctx, l)
	if err != nil {
		return fail(err, "accept() failed")
	}
	return x.Serve(ctx, conn)
}

// Serve is Server for a client that has called already. It closes conn.
func (x *Exchange) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	remote, failed, err := x.readEnds(conn)
	switch {
	case errors.Is(err, ErrBadEnd):
		return fail(err, "%s", failed)
	case err != nil:
		return fail(err, "server read: %v\n%s", clib.SystemError(err), failed)
	}
	if err := x.Connect(remote); err != nil {
		return fail(err, "Couldn't connect to remote QP")
	}
	const line = "Couldn't send/recv local address"
	if _, err := conn.Write(x.messages()); err != nil {
		return fail(err, line)
	}
	done := make([]byte, len(doneMessage))
	if _, err := io.ReadFull(conn, done); err != nil {
		return fail(err, line)
	}
	if string(done) != doneMessage {
		return fail(badEnd(done), line)
	}
	return nil
}
