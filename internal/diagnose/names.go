package diagnose

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// names writes addresses and keys, and on demand others in their place, the same for the same at each time.
type names struct {
	redact bool
	addrs  map[netip.Addr]netip.Addr
	keys   map[uint64]int
}

const maxNames = 1 << 16 // replacements that are kept

func (n *names) addr(a netip.Addr) string {
	if !n.redact || !a.IsValid() {
		return capture.AddrString(a)
	}
	if r, ok := n.addrs[a]; ok {
		return capture.AddrString(r)
	}
	i := len(n.addrs) + 1
	if i > maxNames {
		return "another address"
	}
	if n.addrs == nil {
		n.addrs = make(map[netip.Addr]netip.Addr)
	}
	var r netip.Addr
	_, isLID := capture.LID(a)
	switch {
	case isLID:
		r = capture.LIDAddr(uint16(i))
	case a.Is4() && i < 255: // a range for documentation
		r = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	case a.Is4():
		r = netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
	case a.IsLinkLocalUnicast():
		r = netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 14: byte(i >> 8), 15: byte(i)})
	default:
		r = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 14: byte(i >> 8), 15: byte(i)})
	}
	n.addrs[a] = r
	return capture.AddrString(r)
}

// key writes an rkey, or a virtual address if it has 64 bits.
func (n *names) key(format string, v uint64) string {
	if !n.redact {
		return fmt.Sprintf(format, v)
	}
	i, ok := n.keys[v]
	if !ok {
		if n.keys == nil {
			n.keys = make(map[uint64]int)
		}
		i = len(n.keys) + 1
		if i <= maxNames {
			n.keys[v] = i
		}
	}
	return fmt.Sprintf("(redacted %d)", i)
}

// data writes private data, without the zeros at its end.
func (n *names) data(b []byte) string {
	const most = 32
	for len(b) > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	switch {
	case len(b) == 0:
		return "none"
	case n.redact:
		return fmt.Sprintf("%d bytes", len(b))
	case len(b) > most:
		return fmt.Sprintf("%x… (%d bytes)", b[:most], len(b))
	}
	return fmt.Sprintf("%x", b)
}

// hosts writes the two ends of a direction.
func (n *names) hosts(src, dst netip.Addr) string { return n.addr(src) + " → " + n.addr(dst) }

// filterHosts is a display filter for the packets from src to dst, or "" if addresses are to be hidden.
func (n *names) filterHosts(kind capture.Version, src, dst netip.Addr) string {
	if n.redact {
		return ""
	}
	from, ok := capture.LID(src)
	switch to, ok2 := capture.LID(dst); {
	case ok && ok2:
		return fmt.Sprintf("infiniband.lrh.slid == %d && infiniband.lrh.dlid == %d", from, to)
	case kind == capture.RoCEv1, kind == capture.InfiniBand:
		return fmt.Sprintf("infiniband.grh.sgid == %s && infiniband.grh.dgid == %s", as6(src), as6(dst))
	case src.Is4():
		return fmt.Sprintf("ip.src == %s && ip.dst == %s", src, dst)
	}
	return fmt.Sprintf("ipv6.src == %s && ipv6.dst == %s", src, dst)
}

// filterCM is a display filter for the messages of the connection manager between two hosts.
func (n *names) filterCM(kind capture.Version, one, other netip.Addr) string {
	there, back := n.filterHosts(kind, one, other), n.filterHosts(kind, other, one)
	if there == "" {
		return ""
	}
	return "((" + there + ") || (" + back + ")) && infiniband.bth.destqp == 1"
}

func as6(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

// and joins display filters that are not empty.
func and(filters ...string) string {
	var parts []string
	for _, f := range filters {
		if f == "" {
			return "" // one of them is hidden, and the rest would say too little
		}
		parts = append(parts, f)
	}
	return strings.Join(parts, " && ")
}
