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

// clientExchange tells the server at host where we are, learns where it is, and calls
// connect. The server is ready to receive when it answers. Unlike the C program's client ours
// says that it is done only when it is connected: if that fails, the server learns so, and
// does not wait for a message for ever.
func clientExchange(ctx context.Context, host string, port int, local pingpongEnd, connect func(pingpongEnd) error) (pingpongEnd, error) {
	conn, err := dialServer(ctx, host, port)
	if err != nil {
		return pingpongEnd{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(local.message()); err != nil {
		return pingpongEnd{}, exchangeErr(err, "Couldn't send local address")
	}
	remote, err := readEnd(conn)
	if err != nil {
		return pingpongEnd{}, exchangeErr(err, "client read/write: %v\nCouldn't read/write remote address", errno(err))
	}
	if err := connect(remote); err != nil {
		return remote, err
	}
	if _, err := io.WriteString(conn, doneMessage); err != nil {
		return pingpongEnd{}, exchangeErr(err, "client read/write: %v\nCouldn't read/write remote address", errno(err))
	}
	return remote, nil
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

func readEnd(conn net.Conn) (pingpongEnd, error) {
	b := make([]byte, endMessageSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		return pingpongEnd{}, err
	}
	return parseEnd(b)
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

// serverExchange waits for a client, learns where it is, calls connect, and only then tells
// the client where we are: it sends at once. It closes l.
func serverExchange(ctx context.Context, l net.Listener, local pingpongEnd, connect func(pingpongEnd) error) (pingpongEnd, error) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	stop()
	l.Close()
	if err != nil {
		return pingpongEnd{}, exchangeErr(err, "accept() failed")
	}
	return serveExchange(ctx, conn, local, connect)
}

// serveExchange is serverExchange once a client has called. It closes conn.
func serveExchange(ctx context.Context, conn net.Conn, local pingpongEnd, connect func(pingpongEnd) error) (pingpongEnd, error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	b := make([]byte, endMessageSize)
	if n, err := io.ReadFull(conn, b); err != nil {
		return pingpongEnd{}, exchangeErr(err, "server read: %v\n%d/%d: Couldn't read remote address", errno(err), n, endMessageSize)
	}
	remote, err := parseEnd(b)
	if err != nil {
		return pingpongEnd{}, exchangeErr(err, "%d/%d: Couldn't read remote address", len(b), endMessageSize)
	}
	if err := connect(remote); err != nil {
		return pingpongEnd{}, exchangeErr(err, "Couldn't connect to remote QP")
	}
	if _, err := conn.Write(local.message()); err != nil {
		return pingpongEnd{}, exchangeErr(err, "Couldn't send/recv local address")
	}
	if _, err := io.ReadFull(conn, b[:len(doneMessage)]); err != nil {
		return pingpongEnd{}, exchangeErr(err, "Couldn't send/recv local address")
	}
	return remote, nil
}
