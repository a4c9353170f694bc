//go:build !adverb_portable

package soft_test

import (
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// A program whose user namespace shows its own user as it shows strangers shares no memory, whoever asks, and its packets go
// by UDP. Its log says why. In a namespace that can tell users apart all is as ever.
func TestUserNamespaces(t *testing.T) {
	type change = func(*testing.T, *exec.Cmd)
	for _, tt := range []struct {
		name    string
		change  []change
		carrier string
	}{
		{"none mapped", []change{usertest.Namespace()}, verbs.CarrierUDP},
		{"some mapped, nobody", []change{usertest.Namespace([2]int{0, 65536}), usertest.As(usertest.Nobody)}, verbs.CarrierUDP},
		{"some mapped, another", []change{usertest.Namespace([2]int{0, 65536}), usertest.As(usertest.Somebody)}, verbs.CarrierSHM},
		{"all mapped, nobody", []change{usertest.Namespace(usertest.All()), usertest.As(usertest.Nobody)}, verbs.CarrierSHM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !usertest.In(t, tt.change...) {
				return
			}
			lanes(t)
			log := recorder{got: make(chan string, 100)}
			verbs.SetLogger(slog.New(log))
			defer verbs.SetLogger(nil)
			at := func(i int) *verbs.Device {
				dev, err := verbs.Open(loopback(t) + "@" + loopAddr(i))
				if err != nil {
					t.Fatal(err)
				}
				return dev
			}
			qp := dialBetween(t, at(36), at(37), loopAddr(37))
			for limit := time.Now().Add(patience); qp.Carrier() != tt.carrier && tt.carrier == verbs.CarrierSHM && time.Now().Before(limit); {
				qp = dialBetween(t, at(36), at(37), loopAddr(37)) // the process has stood still for so long that no lane was made
			}
			if got := qp.Carrier(); got != tt.carrier {
				t.Errorf("the carrier is %q, want %q", got, tt.carrier)
			}
			told := false
			for len(log.got) > 0 {
				told = strings.Contains(<-log.got, "shares neither memory nor addresses") || told
			}
			if want := tt.carrier == verbs.CarrierUDP; told != want {
				t.Errorf("the log says that the program shares nothing: %v, want %v", told, want)
			}
			again := at(37)
			defer again.Close()
			_, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{again}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(37)), 0))
			if alone := tt.carrier == verbs.CarrierUDP; alone != errors.Is(err, user.ErrUnmapped) || alone != errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("a second device at the address: %v; want it refused, and why: %v", err, alone)
			}
		})
	}
}
