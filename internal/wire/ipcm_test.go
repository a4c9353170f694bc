package wire

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func TestIPCMHeader(t *testing.T) {
	pad := strings.Repeat("00", 12)
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		wire string
		want IPCMHeader
	}{
		{"00409510" + pad + "0a620002" + pad + "0a620001", IPCMHeader{Src: addr("10.98.0.2"), Dst: addr("10.98.0.1"), SrcPort: 0x9510}},
		{"006097bb" + "fd980000000000000000000000000003" + "fd980000000000000000000000000002",
			IPCMHeader{Src: addr("fd98::3"), Dst: addr("fd98::2"), SrcPort: 0x97bb}},
		{"00400000" + pad + "00000000" + pad + "ffffffff", IPCMHeader{Src: addr("0.0.0.0"), Dst: addr("255.255.255.255")}},
		{"00600001" + strings.Repeat("00", 10) + "ffff01020304" + "fe800000000000000000000000000001",
			IPCMHeader{Src: addr("1.2.3.4"), Dst: addr("fe80::1"), SrcPort: 1}}, // one address is IPv6, so both are
	} {
		wire, err := hex.DecodeString(tt.wire)
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeIPCMHeader(append(wire, "the user's"...))
		if err != nil || got != tt.want {
			t.Errorf("%s decodes to %+v, %v, want %+v", tt.wire, got, err, tt.want)
		}
		checkEncodes(t, "IP CM header", tt.want.AppendTo, wire)
	}
}

// TestIPCMHeaderAddresses checks that the header keeps its length, whatever addresses a program
// gives.
func TestIPCMHeaderAddresses(t *testing.T) {
	addrs := []netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"),
		netip.MustParseAddr("::ffff:10.0.0.1%eth0"), netip.MustParseAddr("fe80::1%eth0"), netip.IPv6Unspecified()}
	for _, src := range addrs {
		for _, dst := range addrs {
			h := IPCMHeader{Src: src, Dst: dst, SrcPort: 5}
			b := h.AppendTo(nil)
			got, err := DecodeIPCMHeader(b)
			if len(b) != IPCMHeaderSize || err != nil || got.SrcPort != 5 {
				t.Fatalf("%v to %v: %d bytes, which decode to %+v, %v, want %d bytes and port 5", src, dst, len(b), got, err, IPCMHeaderSize)
			}
			for _, pair := range [][2]netip.Addr{{src, got.Src}, {dst, got.Dst}} {
				in, out := pair[0].WithZone("").Unmap(), pair[1]
				if in != out && (in.IsValid() || !out.IsUnspecified()) {
					t.Errorf("%v to %v: got %v, want %v", src, dst, out, in)
				}
			}
		}
	}
}

func TestIPCMHeaderRefuses(t *testing.T) {
	good := IPCMHeader{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2")}
	for n := range IPCMHeaderSize {
		if _, err := DecodeIPCMHeader(good.AppendTo(nil)[:n]); err != ErrShortMAD {
			t.Errorf("IP CM header of %d bytes: %v, want ErrShortMAD", n, err)
		}
	}
	for b1 := range 256 {
		b := good.AppendTo(nil)
		b[1] = byte(b1) // the lower half is reserved: ignored
		want := error(ErrIPCMVersion)
		if b1>>4 == 4 || b1>>4 == 6 {
			want = nil
		}
		if _, err := DecodeIPCMHeader(b); err != want {
			t.Errorf("IP version byte %#02x: %v, want %v", b1, err, want)
		}
	}
	for _, version := range []byte{0x01, 0x10} { // minor and major
		b := good.AppendTo(nil)
		b[0] = version
		if h, err := DecodeIPCMHeader(b); err != ErrIPCMVersion || h.Version != version {
			t.Errorf("version %#02x: version %#02x, %v, want ErrIPCMVersion", version, h.Version, err)
		}
	}
}

func TestRDMAServiceID(t *testing.T) {
	for _, tt := range []struct {
		space, port uint16
		id          uint64
	}{
		{PortSpaceTCP, 7174, 0x0000000001061c06},
		{PortSpaceUDP, 7174, 0x0000000001111c06},
		{PortSpaceIB, 0xffff, 0x00000000013fffff},
		{PortSpaceIPoIB, 0, 0x0000000000020000},
	} {
		if got := RDMAServiceID(tt.space, tt.port); got != tt.id {
			t.Errorf("RDMAServiceID(%#x, %d) = %#016x, want %#016x", tt.space, tt.port, got, tt.id)
		}
		if space, port, ok := SplitRDMAServiceID(tt.id); space != tt.space || port != tt.port || !ok {
			t.Errorf("SplitRDMAServiceID(%#016x) = %#x, %d, %v, want %#x, %d, true", tt.id, space, port, ok, tt.space, tt.port)
		}
	}
	if space, port, ok := SplitRDMAServiceID(0x0000000101061c06); ok {
		t.Errorf("a service ID of 33 bits: got port %d in space %#x, want none", port, space)
	}
}
