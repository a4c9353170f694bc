package soft_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// goroutinesOf returns the stacks of the goroutines that run code of this module, apart from the
// caller's.
func goroutinesOf() (stacks []string) {
	b := make([]byte, 1<<20)
	all := strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n")
	for _, s := range all[1:] {
		if strings.Contains(s, "adverb/internal/") || strings.Contains(s, "adverb/rdmacm.") {
			stacks = append(stacks, s)
		}
	}
	return stacks
}

// TestCloseDevices connects by the default devices, and closes these. Nothing of them is left, and
// they are opened again when they are needed.
func TestCloseDevices(t *testing.T) {
	loopback(t)
	before := len(goroutinesOf())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 {
		l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			defer close(accepted)
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := r.Accept(ctx, nil)
			if err != nil {
				t.Error(err)
				return
			}
			accepted <- c
		}()
		x, err := rdmacm.Dial(ctx, l.Addr(), nil)
		if err != nil {
			t.Fatal(err)
		}
		y := <-accepted
		if y == nil {
			t.FailNow()
		}
		mr, err := x.PD().AllocMR(64, verbs.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := rdmacm.CloseDevices(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("CloseDevices with connections: got error %v, want %v", err, verbs.ErrBusy)
		}
		for _, c := range []interface{ Close() error }{l, x, y} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := rdmacm.CloseDevices(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "pd") {
			t.Errorf("CloseDevices with memory in the default PD: got error %v, want %v that names the PD", err, verbs.ErrBusy)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		if err := rdmacm.CloseDevices(); err != nil {
			t.Errorf("CloseDevices with nothing left: got error %v, want none", err)
		}
	}
	limit := time.Now().Add(time.Minute)
	for len(goroutinesOf()) > before { // some are about to end
		if time.Now().After(limit) {
			t.Fatalf("after CloseDevices %d goroutines run, want %d:\n%s", len(goroutinesOf()), before, strings.Join(goroutinesOf(), "\n\n"))
		}
		runtime.Gosched()
	}
}
