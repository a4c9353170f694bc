package udp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
)

// failInterfaces has the next n lists of the network interfaces fail, as where the process has no descriptor to spare.
func failInterfaces(t *testing.T, n int) {
	was := interfaces
	t.Cleanup(func() { interfaces = was })
	interfaces = func() ([]net.Interface, error) {
		if n--; n >= 0 {
			return nil, syscall.EMFILE
		}
		return was()
	}
}

// TestInterfaceNotListed: a network interface is gone only if the system says so. A device never comes back from that.
func TestInterfaceNotListed(t *testing.T) {
	name := someInterface(t)
	d := newNetdev(name, netip.Addr{})
	failInterfaces(t, 1)
	if _, err := d.State(); !errors.Is(err, syscall.EMFILE) || errors.Is(err, link.ErrNoNetdev) {
		t.Errorf("the state of %s when the system lists no interfaces once: %v, want %v", name, err, syscall.EMFILE)
	}
	if _, err := d.State(); err != nil {
		t.Errorf("the state of %s afterwards: %v, want none", name, err)
	}
	if _, err := newNetdev("no-such-interface", netip.Addr{}).State(); !errors.Is(err, link.ErrNoNetdev) {
		t.Errorf("the state of an interface that does not exist: %v, want %v", err, link.ErrNoNetdev)
	}
}

// someInterface returns the name of a network interface.
func someInterface(t *testing.T) string {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Skipf("no network interface: %v", err)
	}
	return all[0].Name
}
