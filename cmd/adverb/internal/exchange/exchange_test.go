package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

func TestEndMessage(t *testing.T) {
	gid, _ := verbs.ParseGID("10.98.0.3")
	e := End{LID: 1, QPN: 0x17, PSN: 0x05d592, GID: gid}
	m := e.Message()
	if want := "0001:000017:05d592:00000000000000000000ffff0a620003\x00"; string(m) != want || len(m) != 52 {
		t.Fatalf("got %q (%d bytes), want %q", m, len(m), want)
	}
	got, err := parseEnd(m)
	if err != nil || got != e {
		t.Errorf("got %+v, %v; want %+v", got, err, e)
	}
	if !e.HasGID() || (End{GID: verbs.GID{0: 0xfe}}).HasGID() {
		t.Error("HasGID: got another answer than that of the lower half, want that")
	}
	for _, bad := range []string{"", "a:b:c", "0001:000017:05d592:0000", "10000:0:0:" + strings.Repeat("0", 32),
		"0:1000000:0:" + strings.Repeat("0", 32), "0:0:x:" + strings.Repeat("0", 32), "0:0:0:" + strings.Repeat("x", 32)} {
		if e, err := parseEnd([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, e)
		}
	}
}

func FuzzParseEnd(f *testing.F) {
	f.Add(End{LID: 1, QPN: 2, PSN: 3}.Message())
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnd(b)
		if err != nil {
			return
		}
		if again, err := parseEnd(e.Message()); err != nil || again != e {
			t.Errorf("%q: got %+v, %v back, want %+v", b, again, err, e)
		}
	})
}

func listenLoopback(t *testing.T) (l net.Listener, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

func connectNothing([]End) error { return nil }

// theseEnds is an exchange of ends. It sends the peer's ends to remote.
func theseEnds(remote chan<- []End, ends ...End) *Exchange {
	return &Exchange{Local: ends, Connect: func(r []End) error { remote <- r; return nil }}
}

// ends makes the ends of a program with n QPs.
func ends(n int, last byte) []End {
	e := make([]End, n)
	for i := range e {
		e[i] = End{QPN: verbs.QPN(i + 1), PSN: verbs.PSN(i), GID: verbs.GID{15: last}}
	}
	return e
}

// The server is connected before the client learns its address.
func TestExchange(t *testing.T) {
	for _, n := range []int{1, 256} {
		l, port := listenLoopback(t)
		atServer, atClient, failed := make(chan []End, 1), make(chan []End, 1), make(chan error, 1)
		go func() { failed <- theseEnds(atServer, ends(n, 1)...).Server(t.Context(), l) }()
		if err := theseEnds(atClient, ends(n, 2)...).Client(t.Context(), "127.0.0.1", port); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-atServer:
			if !slices.Equal(e, ends(n, 2)) {
				t.Errorf("server: got %+v, want %+v", e, ends(n, 2))
			}
		default:
			t.Error("the client knew the server's address before the server was connected")
		}
		if e := <-atClient; !slices.Equal(e, ends(n, 1)) {
			t.Errorf("client: got %+v, want %+v", e, ends(n, 1))
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// exchangeLine is the C program's line about a failed exchange.
func exchangeLine(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Line
	}
	return ""
}

func TestExchangeCannotStart(t *testing.T) {
	l, port := listenLoopback(t)
	l.Close()
	x := Exchange{Local: ends(1, 1), Connect: connectNothing}
	if err := x.Client(t.Context(), "127.0.0.1", port); !strings.HasPrefix(exchangeLine(err), "Couldn't connect to 127.0.0.1:") {
		t.Errorf("nobody listens: got %v, want that it could not connect", err)
	}
	if _, err := Listen(t.Context(), -1); exchangeLine(err) != "Couldn't listen to port -1" {
		t.Errorf("bad port: got %v, want that it could not listen", err)
	}
}

// The server's client sends something else, and leaves.
func TestExchangeServerErrors(t *testing.T) {
	fail := func([]End) error { return errors.New("no") }
	one := string(ends(1, 1)[0].Message())
	for _, tt := range []struct {
		what    string
		local   int
		connect func([]End) error
		say     string
		line    string
	}{
		{"short message", 1, connectNothing, "0000:0", "server read: " + errPeerGoneText + "\n6/52: Couldn't read remote address"},
		{"garbage", 1, connectNothing, strings.Repeat("x", 52), "52/52: Couldn't read remote address"},
		{"connect fails", 1, fail, one, "Couldn't connect to remote QP"},
		{"no done", 1, connectNothing, one, "Couldn't send/recv local address"},
		{"done is something else", 1, connectNothing, one + "0000:", "Couldn't send/recv local address"},
		{"a second message missing", 3, connectNothing, one + one[:7], "server read: " + errPeerGoneText + "\n7/52: Couldn't read remote address [1]"},
		{"a third wrong", 3, connectNothing, one + one + strings.Repeat("x", 52), "52/52: Couldn't read remote address [2]"},
	} {
		server, client := net.Pipe()
		go func() {
			defer client.Close()
			n := min(len(tt.say), tt.local*MessageSize)
			io.WriteString(client, tt.say[:n])
			if tt.say[n:] != "" || tt.line == "Couldn't send/recv local address" {
				io.ReadFull(client, make([]byte, tt.local*MessageSize))
				io.WriteString(client, tt.say[n:])
			}
		}()
		x := Exchange{Local: ends(tt.local, 1), Connect: tt.connect}
		if err := x.Serve(t.Context(), server); exchangeLine(err) != tt.line {
			t.Errorf("%s: line %q, want %q", tt.what, exchangeLine(err), tt.line)
		}
	}
}

// errPeerGoneText is perror's text when a connection ends early.
var errPeerGoneText = io.ErrUnexpectedEOF.Error()

// A client that cannot connect to the server's QP tells the server so.
func TestExchangeClientFails(t *testing.T) {
	l, port := listenLoopback(t)
	failed := make(chan error, 1)
	go func() {
		x := Exchange{Local: ends(1, 1), Connect: connectNothing}
		failed <- x.Server(t.Context(), l)
	}()
	refused := errors.New("refused")
	x := Exchange{Local: ends(1, 2), Connect: func([]End) error { return refused }}
	if err := x.Client(t.Context(), "127.0.0.1", port); !errors.Is(err, refused) {
		t.Errorf("client: got %v, want %v", err, refused)
	}
	if err := <-failed; err == nil {
		t.Error("server: got no error, want that of the client that left")
	}
}

// A canceled context ends a wait for a peer.
func TestExchangeCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, port := listenLoopback(t)
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
			cancel() // the client waits for the answer, or soon will
		}
	}()
	x := Exchange{Local: ends(1, 1), Connect: connectNothing}
	if err := x.Client(ctx, "127.0.0.1", port); err == nil {
		t.Error("client: got no error, want one from the canceled context")
	}
	(<-accepted).Close()
	l, _ = listenLoopback(t)
	if err := x.Server(ctx, l); err == nil {
		t.Error("server: got no error, want one from the canceled context")
	}
}

// Another program sends other bytes, or fewer, and then waits for an answer. Each end ends, and prints the bytes that
// came.
func TestExchangeOtherProgram(t *testing.T) {
	one := string(ends(1, 1)[0].Message())
	for _, tt := range []struct {
		what, says  string
		local       int
		line, cause string
	}{
		{"perftest's version", "6.10" + strings.Repeat("\x00", 12), 1, "16/52: Couldn't read remote address", `"6.10" came: that is no address`},
		{"a web browser", "GET / HTTP/1.1\r\n", 1, "16/52: Couldn't read remote address", `"GET / HTTP/1.1\r\n" came: that is no address`},
		{"part of an address", one[:20], 1, "20/52: Couldn't read remote address", "20 came, and no more for"},
		{"one address of several", one, 16, "0/52: Couldn't read remote address [1]", "52 came, and no more for"},
		{"a second that is none", one + "done", 16, "4/52: Couldn't read remote address [1]", `"done" came: that is no address`},
	} {
		for who, run := range map[string]func(*Exchange, net.Conn) error{
			"server": func(x *Exchange, c net.Conn) error { return x.Serve(t.Context(), c) },
			"client": func(x *Exchange, c net.Conn) error { return x.call(t.Context(), c) },
		} {
			here, there := net.Pipe()
			go io.Copy(io.Discard, there)
			go io.WriteString(there, tt.says)
			x := &Exchange{Local: ends(tt.local, 1), Connect: connectNothing, wait: time.Millisecond}
			err := run(x, here)
			there.Close()
			if exchangeLine(err) != tt.line && exchangeLine(err) != "server read: "+tt.line || !strings.Contains(err.Error(), tt.cause) {
				t.Errorf("%s: %s: got %v, want %q and %q", tt.what, who, err, tt.line, tt.cause)
			}
		}
	}
}
