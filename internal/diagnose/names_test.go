package diagnose

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// Packets of each version have a filter that Wireshark takes, and none where addresses are to be hidden.
func TestFilterHosts(t *testing.T) {
	var n names
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	filters := []string{
		n.filterHosts(capture.RoCEv2, four, four), n.filterHosts(capture.RoCEv2, six, six),
		n.filterHosts(capture.RoCEv1, four, four), n.filterHosts(capture.RoCEv1, six, six),
		(&flow{key: flowKey{six, six, 7}, kind: capture.RoCEv1, peer: &flow{key: flowKey{four, four, 8}, kind: capture.RoCEv2}}).both(&n),
		frameFilter([]int{1, 2}), "macc.opcode == 0x0101 || macc.opcode == 0x0001", "icmp || icmpv6", "frame.cap_len < frame.len",
	}
	for _, f := range filters {
		if f == "" {
			t.Errorf("an empty filter among %q", filters)
		}
	}
	n.redact = true
	if f := and(n.filterHosts(capture.RoCEv2, four, six), "udp"); f != "" {
		t.Errorf("a redacted filter is %q, want none", f)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("tshark is not installed")
	}
	all := "(" + strings.Join(filters, ") || (") + ")"
	if out, err := exec.CommandContext(t.Context(), tshark, "-r", "testdata/two-cm.pcap", "-Y", all, "-c", "1").CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", all, err, out)
	}
}

// Replacements are the same for the same, of the same kind, and none is an address of the capture's.
func TestReplacements(t *testing.T) {
	n := names{redact: true}
	seen := map[string]bool{}
	for i := range 600 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		r := n.addr(a)
		if seen[r] || r != n.addr(a) || !netip.MustParseAddr(r).Is4() || r == a.String() {
			t.Fatalf("%v is %s, want an IPv4 address of its own", a, r)
		}
		seen[r] = true
	}
	if r := n.addr(netip.MustParseAddr("fe80::5")); !netip.MustParseAddr(r).IsLinkLocalUnicast() || r == "fe80::5" {
		t.Errorf("a link-local address is %s, want another one", r)
	}
	if five, six, again := n.key("%#x", 5), n.key("%#x", 6), n.key("%#x", 5); five != again || five == six {
		t.Error("keys: want the same for the same alone")
	}
}
