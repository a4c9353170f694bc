package connector

import (
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Where nobody listens, an iWARP kernel says so when it is asked to connect. Connect is called with a lock that the handler of
// events takes, so the event comes when Connect has returned.
func TestKernelRefuses(t *testing.T) {
	defer SetCommand(func(int, []byte) error { return syscall.ECONNREFUSED })()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	raw, err := r.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c := &kernelConnector{raw: raw, command: command, iwarp: true}
	conn := &kernelConn{c: c}
	var mu sync.Mutex // as rdmacm has one
	events := make(chan Event, 1)
	conn.hear(func(ev Event) {
		mu.Lock()
		defer mu.Unlock()
		events <- ev
	})
	mu.Lock()
	err = conn.connect(&kernelID{c: c}, &Params{})
	mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if ev := <-events; ev.Kind != Rejected || ev.Reason != uint16(wire.RejInvalidServiceID) {
		t.Errorf("got %+v, want a rejection by %v", ev, wire.RejInvalidServiceID)
	}
}
