package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// pingpongEnd is one end of a connection, as the pingpong programs tell it to each other.
type pingpongEnd struct {
	LID uint16
	QPN verbs.QPN
	PSN verbs.PSN
	GID verbs.GID // zero if none was chosen
}

// What the programs send each other over TCP. Each message goes in one write, since the C
// programs read it in one.
const (
	endMessageSize = 52 // "llll:qqqqqq:pppppp:" and 32 digits of GID, and a NUL
	doneMessage    = "done\x00"
)

func (e pingpongEnd) message() []byte {
	b := make([]byte, 0, endMessageSize)
	b = fmt.Appendf(b, "%04x:%06x:%06x:%x", e.LID, uint32(e.QPN), uint32(e.PSN), e.GID[:])
	return append(b, 0)
}

var errBadEnd = errors.New("the peer's message is no address: is it a pingpong program of another kind?")

// parseEnd reads a peer's message. The C programs read it by scanf, to which leading zeros and
// the fields' widths do not matter.
func parseEnd(b []byte) (pingpongEnd, error) {
	s, _, _ := strings.Cut(string(b), "\x00")
	f := strings.SplitN(s, ":", 4)
	if len(f) != 4 || len(f[3]) < 2*len(verbs.GID{}) {
		return pingpongEnd{}, errBadEnd
	}
	const maxQPN, maxPSN, maxLID = 1<<24 - 1, 1<<24 - 1, 1<<16 - 1
	var v [3]uint64
	for i, limit := range []uint64{maxLID, maxQPN, maxPSN} {
		n, err := strconv.ParseUint(f[i], 16, 32)
		if err != nil || n > limit {
			return pingpongEnd{}, errBadEnd
		}
		v[i] = n
	}
	e := pingpongEnd{LID: uint16(v[0]), QPN: verbs.QPN(v[1]), PSN: verbs.PSN(v[2])}
	if _, err := hex.Decode(e.GID[:], []byte(f[3][:2*len(e.GID)])); err != nil {
		return pingpongEnd{}, errBadEnd
	}
	return e, nil
}

// hasGID is the C programs' test for a GID: its lower half is not zero.
func (e pingpongEnd) hasGID() bool { return binary.BigEndian.Uint64(e.GID[8:]) != 0 }

var errPeerGone = errors.New("the peer closed the TCP connection: what it printed says why")

// exchangeError is a failure of the exchange: the classic line, and why.
type exchangeError struct {
	line  string
	cause error
}

func (e *exchangeError) Error() string { return e.line + ": " + e.cause.Error() }
func (e *exchangeError) Unwrap() error { return e.cause }

func exchangeErr(cause error, format string, args ...any) error {
	if cause == io.EOF || cause == io.ErrUnexpectedEOF {
		cause = errPeerGone
	}
	return &exchangeError{fmt.Sprintf(format, args...), cause}
}

// exchange is how two ends learn of each other over TCP. Both send as many messages.
type exchange struct {
	local   []pingpongEnd
	connect func(remote []pingpongEnd) error
}

// many says whether this is the exchange of srq_pingpong, whose errors read otherwise.
func (x *exchange) many() bool { return len(x.local) > 1 }

// client tells the server at host where we are, learns where it is, and calls x.connect. The
// server is ready to receive when it answers. Unlike the C program's client ours says that it
// is done only when it is connected: if that fails, the server learns so, and does not wait
// for a message for ever.
func (x *exchange) client(ctx context.Context, host string, port int) error {
	conn, err := dialServer(ctx, host, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(x.messages()); err != nil {
		return exchangeErr(err, "Couldn't send local address")
	}
	const line = "client read/write: %v\nCouldn't read/write remote address"
	remote, failed, err := x.readEnds(conn)
	switch {
	case err != nil && x.many():
		return exchangeErr(err, "client read: %v\n%s", errno(err), failed)
	case err != nil:
		return exchangeErr(err, line, errno(err))
	}
	if err := x.connect(remote); err != nil {
		return err
	}
	_, err = io.WriteString(conn, doneMessage)
	switch {
	case err != nil && x.many():
		return exchangeErr(err, "client write: %v", errno(err))
	case err != nil:
		return exchangeErr(err, line, errno(err))
	}
	return nil
}

func dialServer(ctx context.Context, host string, port int) (net.Conn, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, exchangeErr(err, "Name or service not known for %s:%d", host, port)
	}
	var dialer net.Dialer
	for _, a := range addrs {
		var conn net.Conn
		conn, err = dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		if err == nil {
			return conn, nil
		}
	}
	return nil, exchangeErr(fmt.Errorf("%w: is the server running there, with the same -p?", err), "Couldn't connect to %s:%d", host, port)
}

func (x *exchange) messages() []byte {
	var b []byte
	for _, e := range x.local {
		b = append(b, e.message()...)
	}
	return b
}

// readEnds reads the peer's messages. failed is the classic line of err.
func (x *exchange) readEnds(conn net.Conn) (remote []pingpongEnd, failed string, err error) {
	b := make([]byte, len(x.local)*endMessageSize)
	n, err := io.ReadFull(conn, b)
	if err != nil {
		return nil, x.readLine(n%endMessageSize, n/endMessageSize), err
	}
	for m := range slices.Chunk(b, endMessageSize) {
		e, err := parseEnd(m)
		if err != nil {
			return nil, x.readLine(endMessageSize, len(remote)), err
		}
		remote = append(remote, e)
	}
	return remote, "", nil
}

// readLine says that only n bytes, or wrong ones, came of a message.
func (x *exchange) readLine(n, message int) string {
	line := fmt.Sprintf("%d/%d: Couldn't read remote address", n, endMessageSize)
	if x.many() {
		line += fmt.Sprintf(" [%d]", message)
	}
	return line
}

// listenPingpong listens for a client of the exchange.
func listenPingpong(ctx context.Context, port int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, exchangeErr(err, "Couldn't listen to port %d", port)
	}
	return l, nil
}

// server waits for a client, learns where it is, calls x.connect, and only then tells the
// client where we are: it sends at once. It closes l.
func (x *exchange) server(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	stop()
	l.Close()
	if err != nil {
		return exchangeErr(err, "accept() failed")
	}
	return x.serve(ctx, conn)
}

// serve is server once a client has called. It closes conn.
func (x *exchange) serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	remote, failed, err := x.readEnds(conn)
	switch {
	case err == errBadEnd:
		return exchangeErr(err, "%s", failed)
	case err != nil:
		return exchangeErr(err, "server read: %v\n%s", errno(err), failed)
	}
	if err := x.connect(remote); err != nil {
		return exchangeErr(err, "Couldn't connect to remote QP")
	}
	const line = "Couldn't send/recv local address"
	if _, err := conn.Write(x.messages()); err != nil {
		return exchangeErr(err, line)
	}
	done := make([]byte, len(doneMessage))
	if _, err := io.ReadFull(conn, done); err != nil {
		return exchangeErr(err, line)
	}
	if string(done) != doneMessage {
		return exchangeErr(errBadEnd, line)
	}
	return nil
}
