package agent

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
)

// local starts a command with an agent that runs in this process.
func local(t *testing.T, req Request) (c *Command, stdout, stderr *strings.Builder) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go Serve(l)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr = new(strings.Builder), new(strings.Builder)
	c, err = Start(conn, req, stdout, stderr)
	if err != nil {
		t.Fatal(err)
	}
	return c, stdout, stderr
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name           string
		req            Request
		stdout, stderr string
		status         Status
	}{
		{"outputs apart", Request{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, "out\n", "err\n", Status{Code: 3}},
		{"stdin and environment", Request{Argv: []string{"sh", "-c", "cat; echo $LAB"}, Stdin: []byte("in "), Env: []string{"LAB=x"}},
			"in x\n", "", Status{}},
		{"signal", Request{Argv: []string{"sh", "-c", "kill -TERM $$"}}, "", "", Status{Code: -1, Signal: "terminated"}},
		{"nothing", Request{}, "", "", Status{Code: -1, Err: "the request names no command"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, stdout, stderr := local(t, tt.req)
			<-c.Done()
			status, err := c.Status()
			if status != tt.status || err != nil || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got %+v, %v, stdout %q, stderr %q; want %+v, %q, %q",
					status, err, stdout, stderr, tt.status, tt.stdout, tt.stderr)
			}
		})
	}
}

func TestNoSuchProgram(t *testing.T) {
	c, _, _ := local(t, Request{Argv: []string{"/nosuch"}})
	<-c.Done()
	if status, err := c.Status(); err != nil || status.Code != -1 || !strings.Contains(status.Err, "/nosuch") {
		t.Errorf("got %+v, %v, want an error that names the program", status, err)
	}
}

func TestSignal(t *testing.T) {
	c, _, _ := local(t, Request{Argv: []string{"sleep", "1000"}})
	if err := c.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if status, err := c.Status(); err != nil || status.Signal != "interrupt" {
		t.Errorf("got %+v, %v, want an interrupt", status, err)
	}
}

// When the host closes the connection, the agent kills the command and its children. The pipe that
// they hold then ends.
func TestHangUpKills(t *testing.T) {
	held, hold := net.Pipe()
	defer held.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err == nil {
			serve(conn)
		}
		close(ended)
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	c, err := Start(conn, Request{Argv: []string{"sh", "-c", "sleep 1000 & echo started; wait"}}, signalWriter(started), hold)
	if err != nil {
		t.Fatal(err)
	}
	<-started
	c.Close()
	<-ended // serve waits for all processes that hold stdout
}

type signalWriter chan struct{}

func (w signalWriter) Write(b []byte) (int, error) { close(w); return len(b), nil }

func TestAwaitTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := AwaitTCP(t.Context(), port); err != nil {
		t.Error(err)
	}
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := AwaitTCP(ctx, port); err == nil {
		t.Error("a closed port listens")
	}
}
