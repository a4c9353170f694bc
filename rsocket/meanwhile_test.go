package rsocket

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// A Write that has sent all its bytes has succeeded, though the connection has ended since or the time is over.
func TestEndBehindWrite(t *testing.T) {
	x, _ := joinWith(t, Config{})
	x.wmu.Lock()
	defer x.wmu.Unlock()
	for what, end := range map[string]func() error{
		"CloseWrite": x.CloseWrite, "the deadline": func() error { return x.SetWriteDeadline(time.Unix(1, 0)) },
	} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if _, err := x.room(0, true); err != nil {
			t.Errorf("%s behind the last byte: %v, want no error", what, err)
		}
		for n := range 2 { // a call without bytes, and one with some
			if _, err := x.room(n, n > 0); err == nil {
				t.Errorf("%s before %d bytes: no error", what, n)
			}
		}
	}
}

// A connection that is closed during a call sends no more, and has no memory that the call could look at.
func TestClosedMeanwhile(t *testing.T) {
	x, other := joinWith(t, Config{Maps: 1})
	x.wmu.Lock()
	room, err := x.room(10, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := x.send([][]byte{make([]byte, 10)}, 10, room); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("data behind CloseWrite: error %v, want %v", err, syscall.EPIPE)
	}
	x.wmu.Unlock()
	if n, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("behind CloseWrite the peer reads %d bytes, error %v; want %v", n, err, io.EOF)
	}
	x.Close()
	<-x.finished
	if _, err := x.WriteAt([]byte("x"), 0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteAt behind Close: error %v, want %v", err, net.ErrClosed)
	}
}
