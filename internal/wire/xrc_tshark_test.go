package wire

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// TestXRCInTshark asks for a second opinion on the opcodes of XRC. tshark 4.0 knows their names and no XRCETH.
func TestXRCInTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	name := filepath.Join(t.TempDir(), "xrc.pcap")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(1<<16, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	var ops []Opcode
	for op := XRC; op < XRC+0x20; op++ {
		if !op.Valid() || op == XRC|RCFlush { // newer than tshark 4.0
			continue
		}
		ops = append(ops, op)
		p := Packet{BTH: BTH{Opcode: op, PKey: DefaultPKey, DestQP: 5}, XRCETH: XRCETH{SRQN: 0x123456}}
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 2}}
		udp := &layers.UDP{SrcPort: 50000, DstPort: UDPPort}
		udp.SetNetworkLayerForChecksum(ip)
		b := gopacket.NewSerializeBuffer()
		err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4},
			ip, udp, gopacket.Payload(p.AppendTo(nil)))
		if err != nil {
			t.Fatal(err)
		}
		n := len(b.Bytes())
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: n, Length: n}, b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", name, "-V").Output()
	if err != nil {
		t.Fatal(err)
	}
	// "Opcode: Extended Reliable Connection (XRC) - RDMA WRITE Last with Immediate (169)", and here "XRC RDMA_WRITE_LAST_WITH_IMM"
	var named []string
	for line := range strings.Lines(string(out)) {
		if _, name, ok := strings.Cut(line, "Opcode: Extended Reliable Connection (XRC) - "); ok {
			name, _, _ = strings.Cut(name, " (")
			named = append(named, plainName(name))
		}
	}
	if len(named) != len(ops) {
		t.Fatalf("tshark sees %d packets of XRC, want %d: %s", len(named), len(ops), out)
	}
	for i, op := range ops {
		if want := plainName(strings.TrimPrefix(op.String(), "XRC ")); named[i] != want {
			t.Errorf("tshark calls %v %q, want %q", op, named[i], want)
		}
	}
}

// plainName removes from an opcode's name what is a matter of taste.
func plainName(s string) string {
	return strings.NewReplacer("_", "", " ", "", "-", "", "immediate", "imm", "cmpswap", "compareswap", "fetchandadd", "fetchadd").Replace(strings.ToLower(s))
}
