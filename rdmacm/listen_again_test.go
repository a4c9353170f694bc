package rdmacm

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
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
