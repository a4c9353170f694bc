package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// An ID keeps the port that BindAddr has taken if Listen finds it in use at a further address, one that could not
// be used before. Another program would get it otherwise, while the ID is bound to it still.
func TestListenFailsAndKeepsPort(t *testing.T) {
	const number = 7000
	n := sim.New(sim.Config{})
	var claims [3]claim
	for i := range claims {
		a, err := acquireAgent(simDevice(t, n, byte(i+1)))
		if err != nil {
			t.Fatal(err)
		}
		defer a.release()
		claims[i] = claim{agent: a, addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
	}
	take := func(claims ...claim) (*binding, error) {
		b := &binding{claims: claims}
		err := b.take(PortSpaceTCP, number)
		return b, err
	}
	bound, err := take(claims[0])
	if err != nil {
		t.Fatal(err)
	}
	defer bound.releasePorts()
	other, err := take(claims[2])
	if err != nil {
		t.Fatal(err)
	}
	defer other.releasePorts()
	bound.claims = append(bound.claims, claims[1:]...) // as if they had been unusable
	if err := bound.take(PortSpaceTCP, number); !errors.Is(err, ErrAddrInUse) {
		t.Fatalf("a port that is taken at one address of three: got %v, want %v", err, ErrAddrInUse)
	}
	if b, err := take(claims[0]); !errors.Is(err, ErrAddrInUse) {
		b.releasePorts()
		t.Errorf("the port that the ID had before: got %v, want %v", err, ErrAddrInUse)
	}
	b, err := take(claims[1])
	if err != nil {
		t.Errorf("the port that the call had taken: got %v, want it free", err)
	}
	b.releasePorts()
}

// TestUnusable: a binding to all addresses passes over an address that cannot be used, such as one that its device has lost in
// the meantime, and not over a port that somebody has.
func TestUnusable(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{fmt.Errorf("claim: %w", syscall.EADDRNOTAVAIL), true},
		{verbs.Errorf(syscall.ENODEV, "device iw_lo does not have the address 127.0.0.1"), true},
		{verbs.Errorf(verbs.ErrNotFound, "GID index 1 is empty: the interface has fewer addresses"), true},
		{verbs.Errorf(verbs.ErrUnsupported, "iWARP has no datagrams"), true},
		{verbs.Errorf(ErrAddrInUse, "port 7"), false},
		{syscall.EMFILE, false},
	} {
		if got := isUnusable(tt.err); got != tt.want {
			t.Errorf("%v is about the address: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestNilDevice: a device that is nil is refused in words, by both ends.
func TestNilDevice(t *testing.T) {
	none := []*verbs.Device{nil}
	at := netip.MustParseAddrPort("127.0.0.1:7")
	_, dial := (&Dialer{Devices: none}).Dial(t.Context(), at, nil)
	_, listen := (&ListenConfig{Devices: none}).Listen(at)
	for op, err := range map[string]error{"dial": dial, "listen": listen} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "device 0 of 1 is nil") {
			t.Errorf("%s: got error %v, want that device 0 is nil", op, err)
		}
	}
}
