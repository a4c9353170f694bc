//go:build !adverb_portable

package rdmacm_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// A request whose QP cannot be made for want of resources is refused for that, when the program closes its ID or says no.
func TestNoResourcesForQP(t *testing.T) {
	for name, end := range map[string]func(*rdmacm.ID) error{
		"close":  (*rdmacm.ID).Close,
		"reject": func(id *rdmacm.ID) error { return errors.Join(id.Reject(nil), id.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			if usertest.In(t, usertest.Ulimit("-s", 512)) { // KiB of address space for the stack of each thread of C, which may begin at any time
				testNoResourcesForQP(t, end)
			}
		})
	}
}

func testNoResourcesForQP(t *testing.T, end func(*rdmacm.ID) error) {
	p := newPair(t)
	ch := rdmacm.NewEventChannel(p.b)
	defer ch.Close()
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := errors.Join(id.BindAddr(addr(t, p.b, false, 0)), id.Listen(0)); err != nil {
		t.Fatal(err)
	}
	dialed := make(chan error, 1)
	go func() {
		_, err := p.dial(t, id.LocalAddr(), nil)
		dialed <- err
	}()
	ev, err := ch.Next(patience(t))
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		t.Fatal(err)
	}
	const spare = 68 << 20 // 64 MiB of which are for the runtime
	limit := pages*uint64(os.Getpagesize()) + spare
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	err = ev.ID.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 16384, MaxRecvWR: 16384, MaxSendSGE: 16, MaxRecvSGE: 16}})
	if !errors.Is(err, verbs.ErrLimit) {
		t.Fatalf("a QP that the address space has no room for: %v, want ErrLimit", err)
	}
	if err := end(ev.ID); err != nil {
		t.Fatal(err)
	}
	err = <-dialed
	if rejected, ok := errors.AsType[*rdmacm.RejectError](err); !ok || rejected.Reason != rdmacm.RejectNoResources {
		t.Errorf("the peer got %v, want reason %v", err, rdmacm.RejectNoResources)
	}
}
