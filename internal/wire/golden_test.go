package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// goldenFiles names the captures in testdata and how many RoCEv2 packets each holds: a reader that
// skips packets must not pass for one that likes them.
var goldenFiles = map[string]int{
	"atomic_cas.pcap":       10,
	"atomic_faa.pcap":       10,
	"mckey.pcap":            3,
	"pad.pcap":              12,
	"rc_pingpong.pcap":      30,
	"rc_pingpong_ipv6.pcap": 18,
	"rdma-write-demo.pcap":  17,
	"read_lat.pcap":         20,
	"rping.pcap":            29,
	"srq_pingpong.pcap":     48,
	"uc_pingpong.pcap":      18,
	"ud_pingpong.pcap":      6,
	"udaddy.pcap":           6,
	"write_lat.pcap":        60,
}

// golden is a packet that a Linux kernel sent.
type golden struct {
	file     string
	n        int // position in the capture, from 1
	src, dst netip.AddrPort
	id       uint16 // IPv4 identification
	df       bool
	datagram []byte
}

func (g *golden) flow() Flow { return NewFlow(g.src, g.dst) }

// loadGolden returns the packets of all captures in testdata.
func loadGolden(t testing.TB) []golden {
	t.Helper()
	var all []golden
	for file := range goldenFiles {
		all = append(all, loadGoldenFile(t, file)...)
	}
	return all
}

func loadGoldenFile(t testing.TB, file string) []golden {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if r.LinkType() != layers.LinkTypeEthernet {
		t.Fatalf("%s: link type %v, want Ethernet", file, r.LinkType())
	}
	var got []golden
	for n := 1; ; n++ {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if g, ok := parseFrame(frame); ok {
			g.file, g.n = file, n
			got = append(got, g)
		}
	}
}

// parseFrame takes the Ethernet, IP and UDP headers off a RoCEv2 packet.
func parseFrame(frame []byte) (g golden, ok bool) {
	const ethernet = 14
	be := binary.BigEndian
	var udp []byte
	var src, dst netip.Addr
	ip := frame[ethernet:]
	switch etherType := be.Uint16(frame[12:]); {
	case etherType == 0x0800 && ip[0] == 0x45 && ip[9] == protocolUDP:
		ip = ip[:be.Uint16(ip[2:])] // Ethernet may have padded
		g.id, g.df = be.Uint16(ip[4:]), be.Uint16(ip[6:]) == ipv4DontFragment
		src, dst = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		udp = ip[ipv4Size:]
	case etherType == 0x86dd && ip[6] == protocolUDP:
		ip = ip[:ipv6Size+int(be.Uint16(ip[4:]))]
		src, dst = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		udp = ip[ipv6Size:]
	default:
		return g, false
	}
	g.src, g.dst = netip.AddrPortFrom(src, be.Uint16(udp)), netip.AddrPortFrom(dst, be.Uint16(udp[2:]))
	g.datagram = udp[udpSize:be.Uint16(udp[4:])]
	return g, g.dst.Port() == UDPPort
}

// TestGolden decodes and encodes again packets that Linux kernels sent to each other.
func TestGolden(t *testing.T) {
	for file, want := range goldenFiles {
		t.Run(file, func(t *testing.T) {
			packets := loadGoldenFile(t, file)
			if len(packets) != want {
				t.Errorf("%d RoCEv2 packets, want %d", len(packets), want)
			}
			for i := range packets {
				checkGolden(t, &packets[i])
			}
		})
	}
}

func checkGolden(t *testing.T, g *golden) {
	t.Helper()
	var p Packet
	if err := p.Decode(g.datagram); err != nil {
		t.Errorf("packet %d: %v", g.n, err)
		return
	}
	if got, want := p.HeaderLen()+len(p.Payload)+int(p.PadCount)+ICRCSize, len(g.datagram); got != want {
		t.Errorf("packet %d, %v: got parts of %d bytes, want the datagram's %d", g.n, &p, got, want)
	}
	if got, want := p.AppendHeaders(nil), g.datagram[:p.HeaderLen()]; !bytes.Equal(got, want) {
		t.Errorf("packet %d, %v: headers encode to\n%x, want\n%x", g.n, &p, got, want)
	}

	flow := g.flow()
	if !flow.Verify(g.id, g.datagram) {
		t.Errorf("packet %d, %v: ICRC %#08x, want %#08x", g.n, &p, flow.ICRC(g.id, g.datagram), foundICRC(g.datagram))
	}
	if id, df, ok := flow.SolveID(g.datagram); id != g.id || df != g.df || !ok {
		t.Errorf("packet %d, %v: SolveID = %#x, %v, %v, want %#x, %v, true", g.n, &p, id, df, ok, g.id, g.df)
	}

	sealed := p.AppendTo(nil)
	flow.Seal(g.id, sealed)
	if !bytes.Equal(sealed, g.datagram) {
		t.Errorf("packet %d, %v: encodes and seals to\n%x, want\n%x", g.n, &p, sealed, g.datagram)
	}
}
