package pcap_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
)

func openPair(t *testing.T, c sim.Config, w *pcap.Writer, addrs ...string) (a, b link.Link) {
	t.Helper()
	n := sim.New(c)
	open := func(s string) link.Link {
		addr := netip.MustParseAddr(s)
		l, err := n.Netdev(s, addr).Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		l = w.Middleware()(l)
		t.Cleanup(func() { l.Close() })
		return l
	}
	return open(addrs[0]), open(addrs[1])
}

func newWriter(t *testing.T, out io.Writer, o pcap.Options) *pcap.Writer {
	t.Helper()
	w, err := pcap.New(out, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestConformance(t *testing.T) {
	open := func(t *testing.T) (a, b link.Link) {
		w := newWriter(t, io.Discard, pcap.Options{})
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		return openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	}
	linktest.Run(t, open)
	linktest.TrafficClass(t, open)
}

// read decodes a file, and checks the checksums.
func read(t *testing.T, file []byte) (packets []gopacket.Packet) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return packets
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.Timestamp.IsZero() || info.CaptureLength != info.Length {
			t.Errorf("packet %d: %+v, want a timestamp and the whole length", len(packets), info)
		}
		p := gopacket.NewPacket(data, layers.LinkTypeRaw, gopacket.Default)
		if p.ErrorLayer() != nil {
			t.Fatalf("packet %d: %v", len(packets), p.ErrorLayer().Error())
		}
		// Serializing again with checksums computed must reproduce the packet.
		again := gopacket.NewSerializeBuffer()
		transport := p.TransportLayer().(interface {
			gopacket.TransportLayer
			gopacket.SerializableLayer
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		})
		_ = transport.SetNetworkLayerForChecksum(p.NetworkLayer())
		if err := gopacket.SerializeLayers(again, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			p.NetworkLayer().(gopacket.SerializableLayer), transport, gopacket.Payload(transport.LayerPayload())); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.Bytes(), data) {
			t.Errorf("packet %d: %x, want %x with right checksums and lengths", len(packets), data, again.Bytes())
		}
		packets = append(packets, p)
	}
}

// What devices did stands between the packets, and other readers see the packets alone.
func TestJournal(t *testing.T) {
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{Now: func() time.Time { return time.Unix(7, 8) }})
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	want := journal.Event{Kind: journal.KindSend, QPN: 0x11, Addr: a.Addr().Addr(), ID: 5, Len: 6, Words: "posts…"}
	w.Journal(want)
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("one")}}); err != nil {
		t.Fatal(err)
	}
	w.Journal(journal.Event{Kind: journal.KindDone})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.Journal(journal.Event{Kind: journal.KindDone}) // the file has ended
	if packets := read(t, file.Bytes()); len(packets) != 1 {
		t.Errorf("another reader sees %d packets, want 1", len(packets))
	}
	r, err := capture.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	var got []journal.Event
	r.Journal = func(e journal.Event) { got = append(got, e) }
	f, err := r.Next()
	if err != nil || f.Number != 1 || len(got) != 1 {
		t.Fatalf("frame %d, %v, behind %d events, want the first behind one", f.Number, err, len(got))
	}
	want.Time = 7_000_000_008
	if _, err := r.Next(); !errors.Is(err, io.EOF) || len(got) != 2 || got[0] != want {
		t.Errorf("got %+v, then %v, want %+v and the end", got, err, want)
	}
}

func TestFile(t *testing.T) {
	for _, c := range []struct {
		name    string
		visible bool
		options pcap.Options
		wantIDs []uint16
	}{
		{"Both", false, pcap.Options{}, []uint16{0, 1, 2, 0, 0, 0, 0, 0}},
		{"Visible", true, pcap.Options{}, []uint16{0, 1, 2, 0, 0, 1, 2, 0}},
		{"OutgoingOnly", true, pcap.Options{OutgoingOnly: true}, []uint16{0, 1, 2, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var file bytes.Buffer
			w := newWriter(t, &file, c.options)
			a, b := openPair(t, sim.Config{IDVisible: c.visible}, w, "10.0.0.1", "10.0.0.2")
			if err := a.Send([]link.Datagram{
				{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("aaaabbbbcc"), SegmentSize: 4, TrafficClass: 0x68},
				{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("single")},
			}); err != nil {
				t.Fatal(err)
			}
			if n, err := b.Recv(make([]link.Datagram, 8)); n != 4 || err != nil {
				t.Fatalf("Recv = %d, %v; want 4", n, err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			var ids []uint16
			for i, p := range read(t, file.Bytes()) {
				ip, udp := p.NetworkLayer().(*layers.IPv4), p.TransportLayer().(*layers.UDP)
				ids = append(ids, ip.Id)
				if ip.Flags != layers.IPv4DontFragment || ip.SrcIP.String() != "10.0.0.1" || ip.DstIP.String() != "10.0.0.2" {
					t.Errorf("packet %d: %v, want DF from 10.0.0.1 to 10.0.0.2", i, ip)
				}
				if uint16(udp.SrcPort) != a.Source(1).Port() || udp.DstPort != link.Port {
					t.Errorf("packet %d: ports %d, %d; want %d, %d", i, udp.SrcPort, udp.DstPort, a.Source(1).Port(), link.Port)
				}
				if want := []string{"aaaa", "bbbb", "cc", "single"}[i%4]; string(udp.Payload) != want {
					t.Errorf("packet %d holds %q, want %q", i, udp.Payload, want)
				}
				if want := []uint8{0x68, 0x68, 0x68, 0}[i%4]; ip.TOS != want {
					t.Errorf("packet %d has TOS %#02x, want %#02x", i, ip.TOS, want)
				}
			}
			if !slices.Equal(ids, c.wantIDs) {
				t.Errorf("identifications %v, want %v", ids, c.wantIDs)
			}
		})
	}
}

// A simulation stamps the packets with its own time.
func TestNow(t *testing.T) {
	var file bytes.Buffer
	at := time.Unix(1_700_000_000, 123456789).UTC()
	w, err := pcap.New(&file, pcap.Options{OutgoingOnly: true, Now: func() time.Time { return at }})
	if err != nil {
		t.Fatal(err)
	}
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("hello")}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	_, info, err := r.ReadPacketData()
	if err != nil || !info.Timestamp.Equal(at) {
		t.Errorf("got a packet at %v, %v, want %v", info.Timestamp, err, at)
	}
}

func TestIPv6(t *testing.T) {
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{})
	a, b := openPair(t, sim.Config{}, w, "fd00::1", "fd00::2")
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("six"), TrafficClass: 0x12, FlowLabel: 0xabcde}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	packets := read(t, file.Bytes())
	if len(packets) != 1 {
		t.Fatalf("%d packets, want 1", len(packets))
	}
	ip := packets[0].NetworkLayer().(*layers.IPv6)
	if ip.SrcIP.String() != "fd00::1" || ip.DstIP.String() != "fd00::2" || ip.TrafficClass != 0x12 || ip.FlowLabel != 0xabcde {
		t.Errorf("%+v, want traffic class 0x12 and flow label 0xabcde from fd00::1 to fd00::2", ip)
	}
}

// The checksums are right for payloads of any length. One that comes out as 0 is written as 0xffff, since 0 in a UDP
// header means that there is none.
func TestChecksums(t *testing.T) {
	for _, addrs := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}, {"::ffff:10.0.0.1", "fd00::2"}} {
		var file bytes.Buffer
		w := newWriter(t, &file, pcap.Options{OutgoingOnly: true})
		a, b := openPair(t, sim.Config{}, w, addrs[0], addrs[1])
		send := func(payload []byte) *layers.UDP {
			t.Helper()
			if err := errors.Join(a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: payload}}), w.Flush()); err != nil {
				t.Fatal(err)
			}
			packets := read(t, file.Bytes())
			udp := packets[len(packets)-1].TransportLayer().(*layers.UDP)
			if !bytes.Equal(udp.Payload, payload) {
				t.Fatalf("%v: payload %x, want %x", addrs, udp.Payload, payload)
			}
			return udp
		}
		for n := range 9 {
			send(bytes.Repeat([]byte{0xfe}, n))
		}
		rest := send([]byte{0, 0}).Checksum
		if c := send([]byte{byte(rest >> 8), byte(rest)}).Checksum; c != 0xffff {
			t.Errorf("%v: checksum %#04x of words whose sum is 0xffff, want 0xffff", addrs, c)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The file says which way a packet went, when to the nanosecond, and over which link.
func TestDirections(t *testing.T) {
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{})
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	before := time.Now()
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("hello")}}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Recv(make([]link.Datagram, 1)); n != 1 || err != nil {
		t.Fatalf("Recv = %d, %v; want 1", n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		name string
		way  pcapgo.NgEpbFlag
	}{{"10.0.0.1:4791", pcapgo.NgEpbFlagDirectionOutbound}, {"10.0.0.2:4791", pcapgo.NgEpbFlagDirectionInbound}} {
		_, info, options, err := r.ReadPacketDataWithOptions()
		if err != nil {
			t.Fatal(err)
		}
		i, err := r.Interface(info.InterfaceIndex)
		if err != nil || i.Name != want.name || i.Resolution().Exponent != -9 {
			t.Errorf("interface %+v, %v; want %s, with nanoseconds", i, err, want.name)
		}
		if options.Flags == nil || options.Flags.Direction != want.way {
			t.Errorf("%s: flags %+v, want direction %v", want.name, options.Flags, want.way)
		}
		if at := info.Timestamp; at.Before(before.Round(0)) || at.After(time.Now()) {
			t.Errorf("%s: the packet is of %v, want the time of this test", want.name, at)
		}
	}
}

// A segment after the end of the written bytes acknowledges that end, which has a sequence number of its own.
func TestStreamEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.ReadAll(c); err == nil { // to its end
			io.WriteString(c, "late")
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{})
	s := w.Stream(c)
	defer s.Close()
	long := make([]byte, 100_000) // more than an IP packet holds
	for i := range long {
		long[i] = byte(i / 256)
	}
	if _, err := s.Write(long); err != nil {
		t.Fatal(err)
	}
	if err := s.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(s); string(b) != "late" || err != nil {
		t.Fatalf("got %q, %v, want late", b, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var end, ack uint32
	var fins int
	var sent []byte
	for _, p := range read(t, file.Bytes()) {
		tcp := p.TransportLayer().(*layers.TCP)
		if tcp.FIN {
			end = tcp.Seq
			fins++
		}
		if tcp.DstPort == layers.TCPPort(l.Addr().(*net.TCPAddr).Port) {
			sent = append(sent, tcp.Payload...)
		}
		if string(tcp.Payload) == "late" {
			ack = tcp.Ack
		}
	}
	if end == 0 || ack != end+1 {
		t.Errorf("FIN has sequence number %d, and the segment after it acknowledges %d, want the next number", end, ack)
	}
	if fins != 1 {
		t.Errorf("got %d FINs after CloseWrite and Close, want 1", fins)
	}
	if !bytes.Equal(sent, long) {
		t.Errorf("got %d bytes of a write of %d, or others, want those", len(sent), len(long))
	}
}

// When a link goes to sleep, everything so far is in the file. So the file of a running program can
// be read.
func TestFlushOnWait(t *testing.T) {
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{})
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("hello")}}); err != nil {
		t.Fatal(err)
	}
	if err := a.Wait(0); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, file.Bytes())); n != 1 {
		t.Errorf("%d packets are in the file, want 1", n)
	}
}

// When a queue pair changes its state, everything so far is in the file. So the file of a program that has ended its
// connection and leaves its device open is whole.
func TestFlushOnState(t *testing.T) {
	var file bytes.Buffer
	w := newWriter(t, &file, pcap.Options{})
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("the last one")}}); err != nil {
		t.Fatal(err)
	}
	w.Journal(journal.Event{Kind: journal.KindDone})
	if file.Len() != 0 {
		t.Errorf("%d bytes are in the file, want none before a change of state", file.Len())
	}
	w.Journal(journal.Event{Kind: journal.KindState})
	if n := len(read(t, file.Bytes())); n != 1 {
		t.Errorf("%d packets are in the file, want 1", n)
	}
}

type failing struct{ err error }

func (f failing) Write(p []byte) (int, error) { return 0, f.err }

// A full disk stops the file, not the link.
func TestWriteError(t *testing.T) {
	cause := errors.New("disk full")
	w, err := pcap.New(failing{cause}, pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	if err := w.Flush(); !errors.Is(err, cause) {
		t.Errorf("Flush: %v, want %v", err, cause)
	}
	for range 3 {
		if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("hello")}}); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Recv(make([]link.Datagram, 1)); n != 1 || err != nil {
			t.Errorf("Recv = %d, %v; want 1", n, err)
		}
	}
	if err := w.Close(); !errors.Is(err, cause) {
		t.Errorf("Close: %v, want %v", err, cause)
	}
}

func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed")
	}
	name := filepath.Join(t.TempDir(), "test.pcapng")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := newWriter(t, file, pcap.Options{OutgoingOnly: true})
	a, b := openPair(t, sim.Config{}, w, "10.0.0.1", "10.0.0.2")
	ack := []byte{0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0x22, 0x1f, 0, 0, 3, 0, 0, 0, 0}
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: ack}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if s := string(out); !strings.Contains(s, "RRoCE") && !strings.Contains(s, "InfiniBand") {
		t.Errorf("tshark prints, want RRoCE or InfiniBand in it:\n%s", s)
	}
}
