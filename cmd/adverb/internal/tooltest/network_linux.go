package tooltest

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// InNetwork runs the test in a network namespace of its own, whose loopback interface has further addresses, in the form
// 10.0.0.1/32. It returns false in the process that is outside, which has nothing more to do.
func InNetwork(t *testing.T, addrs ...string) bool {
	t.Helper()
	if !usertest.In(t, usertest.Network) {
		return false
	}
	if err := linktest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		AddLoopback(t, a)
	}
	return true
}

// AddLoopback gives the loopback interface an address that can be used at once.
func AddLoopback(t *testing.T, addr string) {
	t.Helper()
	if err := linktest.SetAddress("lo", netip.MustParsePrefix(addr), unix.IFA_F_NODAD, true); err != nil {
		t.Fatal(err)
	}
}
