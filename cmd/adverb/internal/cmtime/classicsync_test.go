package cmtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// standIn listens as a server of rdma-core 52 to 58 does, beside a server of ours that makes the connections. It
// answers each number of a client with answer, and returns the numbers that came.
func standIn(t *testing.T, port string, answer func(byte) []byte) (came func() []byte) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(serverAddr, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	all := make(chan []byte, 1)
	go func() {
		var got []byte
		defer func() { all <- got }()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := []byte{0}
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			got = append(got, b[0])
			a := answer(b[0])
			if a == nil {
				return
			}
			c.Write(a)
		}
	}()
	return func() []byte { return <-all }
}

// A server that synchronises gets three rounds, and the client prints the table of the second.
func TestCmtimeSynchronised(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	stop := listener(t, port)
	came := standIn(t, port, func(b byte) []byte { return []byte{b} })
	r := runOfClient(ctx, port, "cmtime -c 7")
	want := regexp.MustCompile("^" + fmt.Sprintf(stepLines, "") + tablePattern(false) + "$")
	if r.Code != 0 || r.Stderr != "" || !want.MatchString(r.Stdout) {
		t.Errorf("got %+v, want status 0, no stderr and stdout that matches %v", r, want)
	}
	// In C: STEP_CONNECT is 12, and STEP_DISCONNECT is 14.
	if got, want := came(), bytes.Repeat([]byte{0, 12, 14}, 3); !bytes.Equal(got, want) {
		t.Errorf("the client sent %v, want %v", got, want)
	}
	if stdout, stderr := stop(true); stdout != "" || stderr != "" {
		t.Errorf("server: got %s%s, want nothing", stdout, stderr)
	}
}

// After its first answer the server may take as long as it likes: it waits for connections.
func TestCmtimeSynchronisedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, server := net.Pipe()
		var served sync.WaitGroup
		defer served.Wait()
		defer server.Close()
		s := &classicSync{conn: conn, stop: func() bool { return true }}
		defer s.close()
		served.Go(func() {
			b := []byte{0}
			for {
				if _, err := io.ReadFull(server, b); err != nil {
					return
				}
				if b[0] != syncStart {
					time.Sleep(2 * syncFirst)
				}
				server.Write(b)
			}
		})
		conn.SetReadDeadline(time.Now().Add(syncFirst)) // as openClassicSync does
		for _, step := range []byte{syncStart, meshConnect} {
			if err := s.await(step); err != nil {
				t.Errorf("step %d: got %v, want the answer, however late", step, err)
			}
		}
	})
}

// A server that does something else ends the client with an error that says so.
func TestCmtimeSynchronisedFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(byte) []byte
		want   string
	}{
		{"gone at once", func(byte) []byte { return nil }, "is gone: its output says why"},
		{"another program", func(byte) []byte { return []byte("SSH-2.0") }, "is at step 83, this client at 0"},
		{"gone after connecting", func(b byte) []byte {
			if b == meshConnect {
				return nil
			}
			return []byte{b}
		}, "it has to be given the same -c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreePort(t)
			defer listener(t, port)(false)
			came := standIn(t, port, tt.answer)
			r := runOfClient(ctx, port, "cmtime -c 2")
			if r.Code != 1 || strings.Contains(r.Stdout, tableHead) || !strings.HasPrefix(r.Stderr, "adverb: ") || !strings.Contains(r.Stderr, tt.want) {
				t.Errorf("got %+v, want status 1, no table, and an error with %q", r, tt.want)
			}
			came()
		})
	}
}

// A connection that fails is one that the server would wait for in vain.
func TestCmtimeSynchronisedRefused(t *testing.T) {
	defer listener(t, tooltest.FreePort(t))(true)
	port := tooltest.FreePort(t) // nobody listens there for RDMA
	came := standIn(t, port, func(b byte) []byte { return []byte{b} })
	r := runOfClient(t.Context(), port, "cmtime -c 3")
	if r.Code != 1 || !strings.Contains(r.Stderr, "1 of 1 connections have failed, and the server waits for all") {
		t.Errorf("got %+v, want status 1 and that the connection has failed", r)
	}
	if got := came(); !bytes.Equal(got, []byte{0}) {
		t.Errorf("the client sent %v, want 0 alone", got)
	}
}

// Our server has clients of rdma-core 52 to 58 wait, any number of them.
func TestCmtimeServerSynchronises(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := tooltest.FreePort(t)
	server := make(chan string, 1)
	go func() {
		_, stdout, stderr := tool.Run(ctx, "cmtime", "--ib-dev", serverDevice, "-b", serverAddr, "-p", port)
		server <- stdout + stderr
	}()
	deadline := time.Now().Add(tooltest.Patience)
	var clients []net.Conn
	for len(clients) < 2 {
		c, err := net.Dial("tcp", net.JoinHostPort(serverAddr, port))
		if err == nil {
			defer c.Close()
			c.SetDeadline(deadline)
			clients = append(clients, c)
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	b := []byte{0}
	for _, step := range []byte{0, 12, 14, 0} {
		for i, c := range clients {
			if _, err := c.Write([]byte{step}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, b); err != nil || b[0] != step {
				t.Fatalf("client %d: got %d, %v at step %d, want it back", i, b[0], err, step)
			}
		}
	}
	cancel()
	if out := <-server; out != "" {
		t.Errorf("the server prints %q, want nothing", out)
	}
	if _, err := clients[0].Read(b); err == nil {
		t.Error("the server has ended, and its connection has not")
	}
}
