package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// Strangers who connect first and say nothing keep no client out, and are closed. The client's first byte is not lost.
func TestAcceptSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := Accept(t.Context(), l)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	strangers := make([]net.Conn, maxSilent+1)
	for i := range strangers {
		strangers[i] = dial()
	}
	if _, err := strangers[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest of %d strangers reads %v, want the end", len(strangers), err)
	}
	client := dial()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	c := <-accepted
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("the client has said %q, %v, want hello", b, err)
	}
	for i, s := range strangers[1:] {
		if _, err := s.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stranger %d reads %v, want the end", i, err)
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := client.Read(b); err != io.EOF {
		t.Errorf("the client reads %v, want the end", err)
	}
	c.Close()
}

// A client that leaves without a word is one, and the wait ends with its context.
func TestAcceptEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, leaves := range []bool{true, false} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		x, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		if leaves {
			x.Close()
		} else {
			cancel()
		}
		c, err := Accept(ctx, l)
		if leaves {
			if err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("who left: read %d bytes, %v, want the end", n, err)
			}
			c.Close()
		} else if err == nil {
			t.Error("the context has ended, and a client is there")
		}
	}
}
