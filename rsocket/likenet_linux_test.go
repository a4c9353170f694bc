package rsocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
)

// stream has the methods of the connections of both packages.
type stream interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(int) error
	SetNoDelay(bool) error
	SetKeepAlive(bool) error
}

// result is the result of a call: a number and an error that programs test for.
func result(n int, err error) string {
	s := fmt.Sprint(n)
	for what, target := range map[string]error{
		"EOF": io.EOF, "deadline": os.ErrDeadlineExceeded, "closed": net.ErrClosed, "EPIPE": syscall.EPIPE,
		"ECONNRESET": syscall.ECONNRESET, "ECONNREFUSED": syscall.ECONNREFUSED, "EADDRINUSE": syscall.EADDRINUSE,
		"ENOTCONN": syscall.ENOTCONN, "canceled": context.Canceled,
	} {
		if errors.Is(err, target) {
			s += " " + what
		}
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		s += " timeout"
	}
	if err != nil && !strings.Contains(s, " ") {
		s += " " + err.Error()
	}
	return s
}

// done is result of a call that returns an error alone.
func done(err error) string { return result(0, err) }

func read(c net.Conn, n int) string     { return result(c.Read(make([]byte, n))) }
func write(c net.Conn, s string) string { return result(c.Write([]byte(s))) }

// readAll reads to the end, and returns the bytes before it.
func readAll(c net.Conn) string {
	b, err := io.ReadAll(c)
	return result(len(b), err)
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// likeNet are the cases. x and y are the ends of a connection.
var likeNet = []struct {
	name         string
	do           func(x, y stream) string
	net, rsocket string
	why          string // a sentence of the documentation begins so, where the two differ
}{
	{name: "read behind the peer's Close", do: func(x, y stream) string { y.Close(); return read(x, 1) }, net: "0 EOF"},
	{name: "read behind the peer's CloseWrite", do: func(x, y stream) string { y.CloseWrite(); return read(x, 1) }, net: "0 EOF"},
	{name: "peer closes with bytes unread", do: func(x, y stream) string {
		write(x, "abc")
		read(y, 1)
		y.Close()
		return read(x, 1) + ", " + read(x, 1)
	}, net: "0 ECONNRESET, 0 EOF", rsocket: "0 ECONNRESET, 0 ECONNRESET", why: keeps},
	{name: "peer closes with bytes unread, and has written", do: func(x, y stream) string {
		write(x, "abc")
		read(y, 1)
		write(y, "answer")
		y.Close()
		return read(x, 6) + ", " + read(x, 1)
	}, net: "6, 0 ECONNRESET"},
	{name: "peer closes with bytes unread after CloseRead", do: func(x, y stream) string {
		write(x, "abc")
		read(y, 1)
		y.CloseRead()
		y.Close()
		return read(x, 1)
	}, net: "0 ECONNRESET"},
	{name: "peer closes with bytes unread behind this end's CloseWrite", do: func(x, y stream) string {
		write(x, "abc")
		x.CloseWrite()
		read(y, 1)
		y.Close()
		return read(x, 1)
	}, net: "0 ECONNRESET"},
	{name: "write behind that", do: func(x, y stream) string {
		write(x, "abc")
		read(y, 1)
		y.Close()
		read(x, 1)
		return write(x, "d")
	}, net: "0 EPIPE", rsocket: "0 ECONNRESET", why: keeps},
	{name: "write behind the peer's Close", do: func(x, y stream) string {
		y.Close()
		read(x, 1)
		return write(x, "a")
	}, net: "1", rsocket: "0 EPIPE", why: once},
	{name: "second write behind the peer's Close", do: func(x, y stream) string {
		y.Close()
		read(x, 1)
		write(x, "a")
		read(x, 1)
		return write(x, "a")
	}, net: "0 EPIPE"},
	{name: "read behind a write behind the peer's Close", do: func(x, y stream) string {
		y.Close()
		read(x, 1)
		write(x, "a")
		return read(x, 1)
	}, net: "0 EOF"},
	{name: "peer closes with linger 0", do: func(x, y stream) string { y.SetLinger(0); y.Close(); return read(x, 1) }, net: "0 ECONNRESET"},
	{name: "peer closes with linger 1", do: func(x, y stream) string { y.SetLinger(1); write(y, "abc"); y.Close(); return readAll(x) }, net: "3"},
	{name: "read of 0 bytes", do: func(x, y stream) string { return read(x, 0) }, net: "0"},
	{name: "read of 0 bytes behind a deadline", do: func(x, y stream) string { x.SetDeadline(past); return read(x, 0) }, net: "0"},
	{name: "read of 0 bytes behind the peer's Close", do: func(x, y stream) string { y.Close(); read(x, 1); return read(x, 0) }, net: "0"},
	{name: "read of 0 bytes behind CloseRead", do: func(x, y stream) string { x.CloseRead(); return read(x, 0) }, net: "0"},
	{name: "read of 0 bytes behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return read(x, 0) }, net: "0"},
	{name: "read of 0 bytes behind Close", do: func(x, y stream) string { x.Close(); return read(x, 0) }, net: "0 closed"},
	{name: "write of 0 bytes", do: func(x, y stream) string { return write(x, "") }, net: "0"},
	{name: "write of 0 bytes behind a deadline", do: func(x, y stream) string { x.SetDeadline(past); return write(x, "") }, net: "0 deadline timeout"},
	{name: "write of 0 bytes behind CloseWrite", do: func(x, y stream) string { x.CloseWrite(); return write(x, "") }, net: "0 EPIPE"},
	{name: "write of 0 bytes behind the peer's Close", do: func(x, y stream) string { y.Close(); read(x, 1); return write(x, "") }, net: "0", rsocket: "0 EPIPE", why: once},
	{name: "write of 0 bytes behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return write(x, "") }, net: "0 EPIPE", rsocket: "0 ECONNRESET", why: keeps},
	{name: "write of 0 bytes behind Close", do: func(x, y stream) string { x.Close(); return write(x, "") }, net: "0 closed"},
	{name: "read behind a deadline", do: func(x, y stream) string { write(y, "a"); x.SetReadDeadline(past); return read(x, 1) }, net: "0 deadline timeout"},
	{name: "read once the deadline is taken away", do: func(x, y stream) string {
		write(y, "a")
		x.SetReadDeadline(past)
		read(x, 1)
		x.SetReadDeadline(time.Time{})
		return read(x, 1)
	}, net: "1"},
	{name: "write behind a deadline of reads", do: func(x, y stream) string { x.SetReadDeadline(past); return write(x, "a") }, net: "1"},
	{name: "write behind a deadline", do: func(x, y stream) string { x.SetWriteDeadline(past); return write(x, "a") }, net: "0 deadline timeout"},
	{name: "read behind a deadline and the peer's Close", do: func(x, y stream) string { y.Close(); read(x, 1); x.SetReadDeadline(past); return read(x, 1) }, net: "0 deadline timeout"},
	{name: "read behind CloseRead", do: func(x, y stream) string { x.CloseRead(); return read(x, 1) }, net: "0 EOF"},
	{name: "read behind CloseRead of what has come", do: func(x, y stream) string {
		write(y, "abc")
		read(x, 1)
		x.CloseRead()
		return read(x, 9) + ", " + read(x, 1)
	}, net: "2, 0 EOF"},
	{name: "write to a peer that has called CloseRead", do: func(x, y stream) string { y.CloseRead(); return write(x, "a") }, net: "1"},
	{name: "write behind CloseRead", do: func(x, y stream) string { x.CloseRead(); return write(x, "a") + ", " + read(y, 1) }, net: "1, 1"},
	{name: "write behind CloseWrite", do: func(x, y stream) string { x.CloseWrite(); return write(x, "a") }, net: "0 EPIPE"},
	{name: "read behind CloseWrite", do: func(x, y stream) string { x.CloseWrite(); write(y, "ab"); return read(x, 2) }, net: "2"},
	{name: "CloseWrite twice", do: func(x, y stream) string { return done(x.CloseWrite()) + ", " + done(x.CloseWrite()) }, net: "0, 0"},
	{name: "CloseRead twice", do: func(x, y stream) string { return done(x.CloseRead()) + ", " + done(x.CloseRead()) }, net: "0, 0"},
	{name: "CloseWrite behind the peer's Close", do: func(x, y stream) string { y.Close(); read(x, 1); return done(x.CloseWrite()) }, net: "0"},
	{name: "CloseRead behind the peer's Close", do: func(x, y stream) string { y.Close(); read(x, 1); return done(x.CloseRead()) }, net: "0"},
	{name: "CloseWrite behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return done(x.CloseWrite()) }, net: "0 ENOTCONN", rsocket: "0 ECONNRESET", why: keeps},
	{name: "CloseRead behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return done(x.CloseRead()) }, net: "0 ENOTCONN", rsocket: "0", why: keeps},
	{name: "Close behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return done(x.Close()) }, net: "0"},
	{name: "second read behind a reset", do: func(x, y stream) string { y.SetLinger(0); y.Close(); read(x, 1); return read(x, 1) }, net: "0 EOF", rsocket: "0 ECONNRESET", why: keeps},
	{name: "read behind CloseWrite and CloseRead of the peer", do: func(x, y stream) string { y.CloseRead(); y.CloseWrite(); return read(x, 1) }, net: "0 EOF"},
	{name: "write behind CloseRead and CloseWrite of the peer", do: func(x, y stream) string {
		y.CloseRead()
		y.CloseWrite()
		read(x, 1)
		return write(x, "a") + ", " + write(x, "a")
	}, net: "1, 0 EPIPE", rsocket: "0 EPIPE, 0 EPIPE", why: once},
	{name: "Close twice", do: func(x, y stream) string { return done(x.Close()) + ", " + done(x.Close()) }, net: "0, 0 closed"},
	{name: "calls behind Close", do: func(x, y stream) string {
		x.Close()
		return strings.Join([]string{read(x, 1), write(x, "a"), done(x.CloseRead()), done(x.CloseWrite()), done(x.SetDeadline(past)), done(x.SetReadDeadline(past)),
			done(x.SetWriteDeadline(past)), done(x.SetLinger(1)), done(x.SetNoDelay(true)), done(x.SetKeepAlive(true)), fmt.Sprint(x.LocalAddr() != nil, x.RemoteAddr() != nil)}, ", ")
	}, net: "0 closed, 0 closed, 0 closed, 0 closed, 0 closed, 0 closed, 0 closed, 0 closed, 0 closed, 0 closed, true true"},
	{name: "Close ends a read", do: func(x, y stream) string {
		got := make(chan string)
		go func() { got <- read(x, 1) }()
		x.Close()
		return <-got
	}, net: "0 closed"},
	{name: "CloseRead ends a read", do: func(x, y stream) string {
		got := make(chan string)
		go func() { got <- read(x, 1) }()
		x.CloseRead()
		return <-got
	}, net: "0 EOF"},
	{name: "a deadline ends a read", do: func(x, y stream) string {
		got := make(chan string)
		go func() { got <- read(x, 1) }()
		x.SetReadDeadline(past)
		return <-got
	}, net: "0 deadline timeout"},
	{name: "a deadline ends a write", do: func(x, y stream) string {
		got := make(chan string)
		go func() { _, err := x.Write(make([]byte, 64<<20)); got <- done(err) }()
		io.ReadFull(y, make([]byte, 1))
		x.SetWriteDeadline(past)
		return <-got
	}, net: "0 deadline timeout"},
	{name: "Close ends a write", do: func(x, y stream) string {
		got := make(chan string)
		go func() { _, err := x.Write(make([]byte, 64<<20)); got <- done(err) }()
		io.ReadFull(y, make([]byte, 1))
		x.Close()
		return <-got
	}, net: "0 closed"},
	{name: "the peer's Close ends a write", do: func(x, y stream) string {
		got := make(chan string)
		go func() { _, err := x.Write(make([]byte, 64<<20)); got <- done(err) }()
		io.ReadFull(y, make([]byte, 1))
		y.Close()
		return <-got
	}, net: "0 ECONNRESET"},
}

// The differences that stay, in the words of the package's documentation.
const (
	keeps = "A connection that has failed keeps its error"
	once  = "A Write to a peer that has called Close fails at once"
)

// Calls return the same results as those of package net. The documentation names the differences.
func TestLikeNet(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.ReplaceAll(string(source), "\n// ", " ")
	n := rdmatest.New(t)
	a, b, at := n.Device(), n.Device(), netip.AddrFrom4([4]byte{10, 0, 0, 2})
	c, _ := iwarpDevice(t, 65)
	d, dAt := iwarpDevice(t, 66)
	for _, tt := range likeNet {
		t.Run(tt.name, func(t *testing.T) {
			near, far := tcpPair(t)
			if got := tt.do(near, far); got != tt.net {
				t.Errorf("package net: got %q, want %q", got, tt.net)
			}
			want := tt.net
			if tt.why != "" {
				if want = tt.rsocket; want == tt.net || !strings.Contains(doc, tt.why) {
					t.Errorf("rsocket differs from package net by %q: the documentation does not say %q", want, tt.why)
				}
			}
			x, y := between(t, a, b, at)
			if got := tt.do(x, y); got != want {
				t.Errorf("rsocket over RoCE: got %q, want %q", got, want)
			}
			end(x)
			end(y)
			x, y = between(t, c, d, dAt)
			if got := tt.do(x, y); got != want {
				t.Errorf("rsocket over iWARP: got %q, want %q", got, want)
			}
			end(x)
			end(y)
		})
	}
}

func tcpPair(t *testing.T) (x, y stream) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); other.Close() })
	return c.(stream), other.(stream)
}
