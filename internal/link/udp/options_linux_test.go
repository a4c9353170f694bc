//go:build linux && !adverb_portable

package udp_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// denyOptions has the kernel refuse options of sockets to this process.
func denyOptions(t *testing.T, names ...string) {
	t.Helper()
	if err := linktest.RefuseOptions(unix.EPERM, unix.SECCOMP_FILTER_FLAG_TSYNC, names...); err != nil {
		t.Skipf("SKIPPED, and so this shows nothing: no seccomp: %v", err)
	}
}

// refusals are the options that a link does without, and a word of the loss. SO_REUSEADDR is a group's.
var refusals = map[string]string{
	"SO_RCVBUF": "net.core.rmem_default", "SO_SNDBUF": "net.core.wmem_default", "SO_RXQ_OVFL": "drop_overflow", "IP_RECVTOS": "ECN",
	"IP_MTU_DISCOVER": "identification", "IPV6_MTU_DISCOVER": "cut", "IP_MULTICAST_IF": "multicast", "IP_MULTICAST_TTL": "multicast",
	"IPV6_FLOWINFO": "flow label", "IPV6_FLOWINFO_SEND": "flow label", "UDP_NO_CHECK6_RX": "checksum", "UDP_GRO": "CPU", "SO_REUSEADDR": "",
}

// TestRefusedOption: where a sandbox refuses an option of sockets, links work without the option, and Refused names
// the loss.
func TestRefusedOption(t *testing.T) {
	for name, lost := range refusals {
		t.Run(name, func(t *testing.T) {
			if !usertest.In(t) {
				return
			}
			denyOptions(t, name)
			refused := udp.Refused()
			if lost == "" {
				if len(refused) > 0 {
					t.Errorf("refused: %q, want nothing that a link misses", link.Refusals(refused))
				}
			} else if len(refused) != 1 || !strings.Contains(refused[0].Option, name) || !strings.Contains(refused[0].Lost, lost) || refused[0].Cause == nil {
				t.Errorf("refused: %q, want %s alone, and the loss: %q", link.Refusals(refused), name, lost)
			}
			for _, pair := range []func() (a, b link.Link){
				func() (a, b link.Link) { return openPair(t) },
				func() (a, b link.Link) { return openIPv6(t) },
			} {
				a, b := pair()
				if err := a.Send([]link.Datagram{{Src: a.Source(0), Dst: b.Addr(), Payload: []byte("payload")}}); err != nil {
					t.Fatal(err)
				}
				if s := a.Stats(); s.Sent != 1 {
					t.Errorf("sent %d, the error is %v; want 1", s.Sent, s.LastSendError)
				}
				if err := b.Wait(linktest.Patience); err != nil {
					t.Fatal(err)
				}
				var in [1]link.Datagram
				if n, err := b.Recv(in[:]); n != 1 || err != nil || string(in[0].Payload) != "payload" {
					t.Errorf("received %d, %q, %v; want the sent bytes", n, in[0].Payload, err)
				}
			}
		})
	}
}

// TestRefusedOptions: without all of the options a link does all of its work, but for traffic classes.
func TestRefusedOptions(t *testing.T) {
	if !usertest.In(t) {
		return
	}
	all := append(slices.Collect(maps.Keys(refusals)), "SO_REUSEPORT", "SO_PASSCRED", "IPV6_RECVTCLASS")
	denyOptions(t, all...)
	if err := udp.Sharing(); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "SO_REUSEPORT") {
		t.Errorf("sharing an address: %v, want EPERM that names SO_REUSEPORT", err)
	}
	linktest.Run(t, func(t *testing.T) (a, b link.Link) { return openPair(t) })
	linktest.Run(t, func(t *testing.T) (a, b link.Link) { return openIPv6(t) })
}

// TestGrantedOptions: granted options are not called refused.
func TestGrantedOptions(t *testing.T) {
	if refused := udp.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q, want nothing on this system", link.Refusals(refused))
	}
	if err := udp.Sharing(); err != nil {
		t.Errorf("sharing an address: %v, want it granted", err)
	}
}
