package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// kernels are packets that two Linux kernels sent to each other, in files of pcap.
func kernels(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("../wire/testdata/*.pcap")
	if err != nil || len(names) == 0 {
		t.Fatalf("no captures: %v", err)
	}
	files := map[string][]byte{}
	for _, n := range names {
		if files[filepath.Base(n)], err = os.ReadFile(n); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// frames reads a whole file. Data are copied.
func frames(file []byte) (list []capture.Frame, err error) {
	r, err := capture.NewReader(bytes.NewReader(file))
	for err == nil {
		var f capture.Frame
		if f, err = r.Next(); err == nil {
			f.Data = slices.Clone(f.Data)
			list = append(list, f)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return list, err
}

// Files of kernels have the frames that gopacket finds, and each is a RoCE packet with a good ICRC.
func TestKernels(t *testing.T) {
	for name, file := range kernels(t) {
		got, err := frames(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		judge, err := pcapgo.NewReader(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		var d capture.Decoder
		for i := 0; ; i++ {
			data, info, err := judge.ReadPacketData()
			if err != nil {
				if i != len(got) {
					t.Errorf("%s: got %d frames, want %d", name, len(got), i)
				}
				break
			}
			if i >= len(got) {
				continue
			}
			f := got[i]
			if !bytes.Equal(f.Data, data) || f.Length != info.Length || f.Time != info.Timestamp.UnixNano() || f.Number != i+1 {
				t.Errorf("%s: frame %d: got %d of %d bytes at %d, want %d of %d at %d", name, i+1, len(f.Data), f.Length, f.Time, len(data), info.Length, info.Timestamp.UnixNano())
			}
			p, kind := d.Decode(f)
			if kind != capture.KindRoCE || p.Version != capture.RoCEv2 || p.Err != nil || p.ICRC() != capture.ICRCGood || p.Cut() {
				t.Errorf("%s: frame %d: got kind %d, version %d, error %v, ICRC %d, cut %v, want a whole packet of RoCE v2", name, i+1, kind, p.Version, p.Err, p.ICRC(), p.Cut())
			}
		}
	}
}

// one returns a frame of a kernel over IPv4, from its Ethernet header on, with a payload of some length.
func one(t testing.TB) []byte {
	t.Helper()
	list, err := frames(kernels(t)["rc_pingpong.pcap"])
	if err != nil {
		t.Fatal(err)
	}
	return list[0].Data
}

// be returns numbers of 16 bits in network order.
func be(numbers ...uint16) (b []byte) {
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	return b
}

// udp4 wraps a payload in IPv4 and UDP.
func udp4(port uint16, payload []byte) []byte {
	return ip4(17, slices.Concat(be(4000, port, uint16(8+len(payload)), 0), payload))
}

func ip4(protocol uint8, payload []byte) []byte {
	h := slices.Concat(be(0x4500, uint16(20+len(payload)), 1, 0x4000, 64<<8|uint16(protocol), 0), []byte{192, 0, 2, 1, 192, 0, 2, 2})
	return append(h, payload...)
}

// ether puts an Ethernet header in front.
func ether(kind uint16, payload []byte) []byte {
	return slices.Concat([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, be(kind), payload)
}

func erf(kind byte, extensions int, payload []byte) []byte {
	h := make([]byte, 16)
	h[8] = kind
	binary.BigEndian.PutUint16(h[10:], uint16(len(payload)+16+8*extensions))
	binary.BigEndian.PutUint16(h[14:], uint16(len(payload)))
	for i := range extensions {
		h[8] |= 0x80
		ext := make([]byte, 8)
		if i+1 < extensions {
			ext[0] = 0x80
		}
		h = append(h, ext...)
	}
	return append(h, payload...)
}

// A packet is found behind each link's header and in each tunnel, whole or cut at each byte.
func TestLinksAndTunnels(t *testing.T) {
	frame := one(t)
	ip := frame[14:]
	vxlan := slices.Concat([]byte{8, 0, 0, 0, 0, 0, 7, 0}, frame)
	for _, tt := range []struct {
		name   string
		link   capture.LinkType
		data   []byte
		tunnel capture.Tunnel
		vlan   uint16
	}{
		{"Ethernet", capture.LinkEthernet, frame, 0, 0},
		{"padded Ethernet", capture.LinkEthernet, append(slices.Clone(frame), 1, 2, 3, 4, 5), 0, 0},
		{"VLAN", capture.LinkEthernet, ether(0x8100, slices.Concat(be(0x6064, 0x0800), ip)), 0, 0x6064},
		{"QinQ", capture.LinkEthernet, ether(0x88a8, slices.Concat(be(7, 0x8100, 8, 0x0800), ip)), 0, 8},
		{"raw", capture.LinkRaw, ip, 0, 0}, {"raw, old", capture.LinkRawOld, ip, 0, 0}, {"IPv4", capture.LinkIPv4, ip, 0, 0},
		{"null", capture.LinkNull, slices.Concat([]byte{2, 0, 0, 0}, ip), 0, 0}, {"loop", capture.LinkLoop, slices.Concat([]byte{0, 0, 0, 2}, ip), 0, 0},
		{"SLL", capture.LinkSLL, slices.Concat(be(0, 1, 6, 1, 2, 3, 0, 0x0800), ip), 0, 0},
		{"SLL with VLAN", capture.LinkSLL, slices.Concat(be(0, 1, 6, 1, 2, 3, 0, 0x8100, 5, 0x0800), ip), 0, 5},
		{"SLL2", capture.LinkSLL2, slices.Concat(be(0x0800, 0, 0, 2, 1, 0x0006, 1, 2, 3, 0), ip), 0, 0},
		{"ERF Ethernet", capture.LinkERF, erf(2, 0, slices.Concat([]byte{0, 0}, frame)), 0, 0},
		{"ERF with extensions", capture.LinkERF, erf(2, 2, slices.Concat([]byte{0, 0}, frame)), 0, 0},
		{"ERF IPv4", capture.LinkERF, erf(22, 0, ip), 0, 0},
		{"VXLAN", capture.LinkEthernet, ether(0x0800, udp4(4789, vxlan)), capture.VXLAN, 0},
		{"VXLAN in VLAN", capture.LinkEthernet, ether(0x8100, slices.Concat(be(9, 0x0800), udp4(4789, vxlan))), capture.VXLAN, 0},
		{"Geneve", capture.LinkEthernet, ether(0x0800, udp4(6081, slices.Concat([]byte{1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4}, frame))), capture.Geneve, 0},
		{"Geneve of IP", capture.LinkEthernet, ether(0x0800, udp4(6081, slices.Concat([]byte{0, 0, 8, 0, 0, 0, 7, 0}, ip))), capture.Geneve, 0},
		{"GRE of IP", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0, 0x0800), ip))), capture.GRE, 0},
		{"GRE with key and number", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0x3000, 0x6558, 0, 1, 0, 2), frame))), capture.GRE, 0},
		{"ERSPAN I", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0, 0x88be), frame))), capture.ERSPAN, 0},
		{"ERSPAN II", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0x1000, 0x88be, 0, 1, 0x1000, 1, 0, 0), frame))), capture.ERSPAN, 0},
		{"ERSPAN III", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0x1000, 0x22eb, 0, 1, 0x2000, 1, 0, 0, 0, 0), frame))), capture.ERSPAN, 0},
		{"ERSPAN III with a platform", capture.LinkEthernet, ether(0x0800, ip4(47, slices.Concat(be(0x1000, 0x22eb, 0, 1, 0x2000, 1, 0, 0, 0, 1, 0, 0, 0, 0), frame))), capture.ERSPAN, 0},
		{"MPLS", capture.LinkEthernet, ether(0x8847, slices.Concat([]byte{0, 1, 0, 64, 0, 2, 1, 64}, ip)), 0, 0},
		{"IP in IP", capture.LinkEthernet, ether(0x0800, ip4(4, ip)), capture.IPinIP, 0},
		{"a tunnel in a tunnel", capture.LinkEthernet, ether(0x0800, ip4(4, udp4(4789, vxlan))), capture.VXLAN, 0},
	} {
		var d, other capture.Decoder
		want, _ := other.Decode(capture.Frame{Link: capture.LinkEthernet, Data: frame, Length: len(frame)})
		p, kind := d.Decode(capture.Frame{Link: tt.link, Data: tt.data, Length: len(tt.data)})
		if kind != capture.KindRoCE || p.Err != nil || p.ICRC() != capture.ICRCGood || p.Tunnel != tt.tunnel || p.VLAN != tt.vlan || p.Cut() {
			t.Errorf("%s: got kind %d, error %v, ICRC %d, tunnel %q, VLAN %#x, cut %v", tt.name, kind, p.Err, p.ICRC(), p.Tunnel, p.VLAN, p.Cut())
		}
		if p.Src != want.Src || p.Dst != want.Dst || p.Transport.BTH != want.Transport.BTH || !bytes.Equal(p.Datagram, want.Datagram) || p.ID != want.ID {
			t.Errorf("%s: got %v->%v %v, want %v->%v %v", tt.name, p.Src, p.Dst, &p.Transport, want.Src, want.Dst, &want.Transport)
		}
		last := capture.KindCut
		for n := range tt.data {
			p, kind := d.Decode(capture.Frame{Link: tt.link, Data: tt.data[:n], Length: len(tt.data)})
			switch {
			case kind == capture.KindCut && last == capture.KindCut: // nothing can be told yet
			case kind == capture.KindRoCE && p.Cut() == (len(p.Datagram) < len(want.Datagram)) && (len(p.Datagram) < wire.BTHSize || p.Transport.PSN == want.Transport.PSN):
				if p.Err == nil && len(p.Transport.Payload) > len(want.Transport.Payload) || p.Cut() && p.ICRC() != capture.ICRCUnknown {
					t.Errorf("%s, cut to %d bytes: got %d bytes of payload, ICRC %d", tt.name, n, len(p.Transport.Payload), p.ICRC())
				}
			default:
				t.Fatalf("%s, cut to %d bytes: got kind %d behind %d, cut %v, %v", tt.name, n, kind, last, p.Cut(), &p.Transport)
			}
			last = kind
		}
	}
}

// slowICRC is another way to the ICRC: the bytes as the specification lists them, for a GRH or an LRH in front.
func slowICRC(lrh, grh, datagram []byte) uint32 {
	b := slices.Repeat([]byte{0xff}, 8)
	if grh == nil {
		b = slices.Clone(lrh)
		b[0] |= 0xf0
	}
	b = append(b, grh...)
	if grh != nil {
		h := b[8:]
		h[0] |= 0x0f
		h[1], h[2], h[3], h[7] = 0xff, 0xff, 0xff, 0xff
	}
	at := len(b) + 4
	b = append(b, datagram[:len(datagram)-4]...)
	b[at] = 0xff
	return crc32.ChecksumIEEE(b)
}

// RoCE v1 and InfiniBand have a GRH or an LRH in front. Their ICRC covers the GRH, and without one the LRH.
func TestVersions(t *testing.T) {
	datagram := slices.Clone(one(t)[42:])
	grh := slices.Concat([]byte{0x60, 0, 0, 0}, be(uint16(len(datagram))), []byte{0x1b, 64},
		netip.MustParseAddr("fe80::1").AsSlice(), netip.MustParseAddr("::ffff:10.0.0.2").AsSlice())
	seal := func(lrh, grh []byte) []byte {
		d := slices.Clone(datagram)
		binary.LittleEndian.PutUint32(d[len(d)-4:], slowICRC(lrh, grh, d))
		return d
	}
	lrh := func(lnh byte, n int) []byte { return slices.Concat([]byte{0, 0xf0 | lnh}, be(5, uint16(8+n)/4, 3)) }
	local, global := lrh(2, len(datagram)), lrh(3, len(datagram)+40)
	var d capture.Decoder
	for _, tt := range []struct {
		name    string
		link    capture.LinkType
		data    []byte
		version capture.Version
		dst     string
	}{
		{"RoCE v1", capture.LinkEthernet, ether(0x8915, slices.Concat(grh, seal(nil, grh))), capture.RoCEv1, "10.0.0.2"},
		{"RoCE v1, padded", capture.LinkEthernet, ether(0x8915, slices.Concat(grh, seal(nil, grh), make([]byte, 9))), capture.RoCEv1, "10.0.0.2"},
		{"InfiniBand, local", capture.LinkInfiniBand, slices.Concat(local, seal(local, nil), []byte{1, 2}), capture.InfiniBand, "LID 5"},
		{"InfiniBand, global", capture.LinkInfiniBand, slices.Concat(global, grh, seal(global, grh), []byte{1, 2}), capture.InfiniBand, "10.0.0.2"},
		{"InfiniBand in ERF", capture.LinkERF, erf(21, 0, slices.Concat(local, seal(local, nil), []byte{1, 2})), capture.InfiniBand, "LID 5"},
	} {
		p, kind := d.Decode(capture.Frame{Link: tt.link, Data: tt.data, Length: len(tt.data)})
		dst := capture.AddrString(p.Dst.Addr())
		if kind != capture.KindRoCE || p.Version != tt.version || p.Err != nil || p.ICRC() != capture.ICRCGood || dst != tt.dst || p.Length != len(datagram) {
			t.Errorf("%s: got kind %d, version %d, error %v, ICRC %d, to %q, %d bytes", tt.name, kind, p.Version, p.Err, p.ICRC(), dst, p.Length)
		}
		if tt.version == capture.InfiniBand && (p.DLID != 5 || p.SLID != 3) {
			t.Errorf("%s: got LIDs %d and %d, want 3 and 5", tt.name, p.SLID, p.DLID)
		}
	}
}

// The ICRC tells damage from an identification that the capture does not show.
func TestICRC(t *testing.T) {
	var d capture.Decoder
	verdict := func(change func(b []byte)) capture.Verdict {
		b := slices.Clone(one(t))
		change(b)
		p, _ := d.Decode(capture.Frame{Link: capture.LinkEthernet, Data: b, Length: len(b)})
		return p.ICRC()
	}
	for name, tt := range map[string]struct {
		change func(b []byte)
		want   capture.Verdict
	}{
		"as sent":                {func(b []byte) {}, capture.ICRCGood},
		"routed, marked by ECN":  {func(b []byte) { b[15], b[22], b[24] = 3, 9, 77 }, capture.ICRCGood},
		"FECN":                   {func(b []byte) { b[42+4] |= 0x80 }, capture.ICRCGood},
		"no identification":      {func(b []byte) { b[18], b[19] = 0, 0 }, capture.ICRCOtherID},
		"no don't-fragment flag": {func(b []byte) { b[20] ^= 0x40 }, capture.ICRCOtherID},
		"another source":         {func(b []byte) { b[29]++ }, capture.ICRCBad},
		"a bit of the payload":   {func(b []byte) { b[70] ^= 1 }, capture.ICRCBad},
		"a bit of the P_Key":     {func(b []byte) { b[42+2] ^= 1 }, capture.ICRCBad},
	} {
		if got := verdict(tt.change); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

func TestKinds(t *testing.T) {
	var d capture.Decoder
	fragment := ip4(17, make([]byte, 30))
	fragment[6] = 0x20
	for name, tt := range map[string]struct {
		data []byte
		want capture.Kind
	}{
		"ARP": {ether(0x0806, make([]byte, 28)), capture.KindARP}, "pause": {ether(0x8808, make([]byte, 46)), capture.KindPause},
		"TCP": {ether(0x0800, ip4(6, make([]byte, 20))), capture.KindTCP}, "ICMP": {ether(0x0800, ip4(1, make([]byte, 20))), capture.KindICMP},
		"DNS": {ether(0x0800, udp4(53, make([]byte, 20))), capture.KindUDP}, "a fragment": {ether(0x0800, fragment), capture.KindFragment},
		"LLDP": {ether(0x88cc, make([]byte, 46)), capture.KindOther}, "nothing": {nil, capture.KindCut}, "IP of version 9": {ether(0x0800, []byte{0x90}), capture.KindOther},
		"a short datagram": {ether(0x0800, udp4(4791, make([]byte, 3))), capture.KindRoCE},
	} {
		p, got := d.Decode(capture.Frame{Link: capture.LinkEthernet, Data: tt.data, Length: len(tt.data)})
		if got != tt.want || got == capture.KindRoCE && p.Err != wire.ErrShort {
			t.Errorf("%s: got kind %d and error %v, want kind %d", name, got, p.Err, tt.want)
		}
	}
	if _, got := d.Decode(capture.Frame{Link: 9999, Data: make([]byte, 99), Length: 99}); got != capture.KindOther {
		t.Errorf("an unknown link: got kind %d, want %d", got, capture.KindOther)
	}
	deep := ether(0x0800, nil)
	for range 100 {
		deep = ip4(4, deep)
	}
	if _, got := d.Decode(capture.Frame{Link: capture.LinkRaw, Data: deep, Length: len(deep)}); got != capture.KindOther {
		t.Errorf("100 tunnels in one another: got kind %d, want %d", got, capture.KindOther)
	}
}

// Frames of other kinds have the fields that say what they are about.
func TestContents(t *testing.T) {
	var d capture.Decoder
	decode := func(link capture.LinkType, data []byte, want capture.Kind) *capture.Packet {
		t.Helper()
		for n := range data {
			d.Decode(capture.Frame{Link: link, Data: data[:n], Length: len(data)})
		}
		p, got := d.Decode(capture.Frame{Link: link, Data: data, Length: len(data)})
		if got != want {
			t.Errorf("got kind %d, want %d", got, want)
		}
		return p
	}
	pfc := slices.Concat(be(0x0101, 0b1000, 0, 0, 0, 0xffff, 0, 0, 0, 0), make([]byte, 26))
	if p := decode(capture.LinkEthernet, ether(0x8808, pfc), capture.KindPause).Pause; p.Classes != 0b1000 || p.Quanta[3] != 0xffff || p.Quanta[2] != 0 {
		t.Errorf("a pause of priority 3: %+v", p)
	}
	if p := decode(capture.LinkEthernet, ether(0x8808, be(1, 9)), capture.KindPause).Pause; p.Classes != 0xff || p.Quanta[7] != 9 {
		t.Errorf("a pause of the link: %+v", p)
	}
	icmp := slices.Concat([]byte{3, 13, 0, 0, 0, 0, 0, 0}, udp4(4791, nil))
	if i := decode(capture.LinkEthernet, ether(0x0800, ip4(1, icmp)), capture.KindICMP).ICMP; i.Type != 3 || i.Code != 13 || i.Port != 4791 || i.From.String() != "192.0.2.1" || i.Dst.String() != "192.0.2.2" {
		t.Errorf("an ICMP message: %+v", i)
	}
	icmp = slices.Concat([]byte{3, 4, 0, 0, 0, 0, 5, 220}, udp4(4791, nil))
	if i := decode(capture.LinkEthernet, ether(0x0800, ip4(1, icmp)), capture.KindICMP).ICMP; !i.TooLong || i.MTU != 1500 || i.Port != 4791 {
		t.Errorf("an ICMP message of a packet that is too long: %+v", i)
	}
	six := slices.Concat([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, make([]byte, 15), []byte{1}, make([]byte, 15), []byte{2}, be(9, 4791, 8, 0))
	icmp6 := slices.Concat([]byte{0x60, 0, 0, 0, 0, 56, 58, 64}, make([]byte, 32), []byte{1, 4, 0, 0, 0, 0, 0, 0}, six)
	if i := decode(capture.LinkRaw, icmp6, capture.KindICMP).ICMP; i.Type != 1 || i.Code != 4 || i.Port != 4791 || i.Src.String() != "::1" {
		t.Errorf("an ICMPv6 message: %+v", i)
	}
	copy(icmp6[40:], []byte{2, 0, 0, 0, 0, 0, 5, 0})
	if i := decode(capture.LinkRaw, icmp6, capture.KindICMP).ICMP; !i.TooLong || i.MTU != 1280 || i.Port != 4791 {
		t.Errorf("an ICMPv6 message of a packet that is too long: %+v", i)
	}
	tcp := slices.Concat(be(1, 2, 0, 3, 0, 4, 5<<12|capture.TCPAck, 6, 0, 0), []byte("hello"))
	if p := decode(capture.LinkEthernet, append(ether(0x0800, ip4(6, tcp)), 0, 0), capture.KindTCP); string(p.Stream) != "hello" ||
		p.TCP != (capture.TCP{Seq: 3, Ack: 4, Flags: capture.TCPAck, Window: 6, Length: 5}) || p.Src.Port() != 1 || p.Dst.Port() != 2 {
		t.Errorf("a TCP segment: %q from %v to %v, %+v; want hello", p.Stream, p.Src, p.Dst, p.TCP)
	}
	ip := one(t)[14:]
	if f := decode(capture.LinkSLL, slices.Concat(be(4, 1, 6, 1, 2, 3, 0, 0x0800), ip), capture.KindRoCE).Frame; f.Direction != capture.Outbound {
		t.Errorf("a cooked frame: direction %d, want outbound", f.Direction)
	}
	if f := decode(capture.LinkSLL2, slices.Concat(be(0x0800, 0, 0, 7, 1, 0x0006, 1, 2, 3, 0), ip), capture.KindRoCE).Frame; f.Direction != capture.Inbound || f.Interface != 7 {
		t.Errorf("a cooked frame: direction %d, interface %d; want inbound, 7", f.Direction, f.Interface)
	}
	if p := decode(capture.LinkERF, erf(21, 0, one(t)), capture.KindRoCE); p.Version != capture.RoCEv2 || p.ICRC() != capture.ICRCGood {
		t.Errorf("a record of a card's sniffer: version %d, ICRC %d", p.Version, p.ICRC())
	}
}

// The packets of a link that this project's own writer records have directions.
func TestDirections(t *testing.T) {
	var file bytes.Buffer
	w, err := pcap.New(&file, pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := sim.New(sim.Config{})
	open := func(name, addr string) link.Link {
		a := netip.MustParseAddr(addr)
		l, err := n.Netdev(name, a).Open(a)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return w.Middleware()(l)
	}
	a, b := open("a", "10.0.0.1"), open("b", "10.0.0.2")
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 33)}}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Recv(make([]link.Datagram, 1)); n != 1 || err != nil {
		t.Fatalf("Recv = %d, %v; want 1", n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	list, err := frames(file.Bytes())
	if err != nil || len(list) != 2 || list[0].Direction != capture.Outbound || list[1].Direction != capture.Inbound || list[0].Interface == list[1].Interface {
		t.Errorf("%d frames, %v: %+v; want one outbound, and one inbound at another interface", len(list), err, list)
	}
}

// Reading and decoding allocate nothing for a frame.
func TestAllocations(t *testing.T) {
	file := bytes.Repeat(kernels(t)["write_lat.pcap"][24:], 20)
	file = append(slices.Clone(kernels(t)["write_lat.pcap"][:24]), file...)
	r, err := capture.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var d capture.Decoder
	step := func() {
		f, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if p, kind := d.Decode(f); kind != capture.KindRoCE || p.ICRC() != capture.ICRCGood {
			t.Fatalf("frame %d: got kind %d", f.Number, kind)
		}
	}
	for range 50 {
		step()
	}
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("got %v allocations a frame, want 0", n)
	}
}

// Any bytes may stand in a frame of any link.
func FuzzDecoder(f *testing.F) {
	f.Add(uint32(capture.LinkEthernet), one(f), 0)
	f.Add(uint32(capture.LinkERF), erf(21, 1, make([]byte, 60)), 9)
	f.Add(uint32(capture.LinkEthernet), ether(0x0800, ip4(47, be(0x3000, 0x22eb))), 70000)
	f.Fuzz(func(t *testing.T, link uint32, data []byte, more int) {
		var d capture.Decoder
		p, kind := d.Decode(capture.Frame{Link: capture.LinkType(link), Data: data, Length: len(data) + max(more, 0)%(1<<20)})
		if kind == capture.KindRoCE {
			p.ICRC()
			if p.Err == nil && len(p.Transport.Payload) > len(p.Datagram) {
				t.Errorf("a payload of %d bytes in a datagram of %d", len(p.Transport.Payload), len(p.Datagram))
			}
		}
	})
}

func BenchmarkReader(b *testing.B) {
	file := kernels(b)["write_lat.pcap"]
	for range 8 {
		file = slices.Concat(file, file[24:])
	}
	b.SetBytes(int64(len(file)))
	packets := 0
	for range b.N {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			b.Fatal(err)
		}
		var d capture.Decoder
		for {
			f, err := r.Next()
			if err != nil {
				break
			}
			p, _ := d.Decode(f)
			p.ICRC()
			packets++
		}
	}
	b.ReportMetric(float64(packets)/b.Elapsed().Seconds(), "packets/s")
}
