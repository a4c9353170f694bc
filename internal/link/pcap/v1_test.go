package pcap_test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// sealed returns datagrams of a flow of RoCEv1, each with an ICRC: an acknowledgement, and WRITEs of some lengths.
func sealed(t *testing.T, src, dst netip.AddrPort) (all []link.Datagram) {
	t.Helper()
	flow := wire.NewFlow(src, dst)
	for _, n := range []int{-1, 0, 1, 100, 1024, 4096} {
		p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: 0x11, PSN: 0x22}}
		if n >= 0 {
			p.Opcode, p.Payload = wire.RCRDMAWriteOnly, bytes.Repeat([]byte{0xa5}, n)
		}
		d := link.Datagram{Src: src, Dst: dst, Payload: p.AppendTo(nil), TrafficClass: 0x6a, FlowLabel: flow.Label()}
		flow.Seal(0, d.Payload)
		all = append(all, d)
	}
	return all
}

func v1(s string) string { return link.V1(netip.MustParseAddr(s)).String() }

// TestRoCEv1: frames of RoCEv1 have their Ethernet header and GRH, and the ICRC is right by another computation.
func TestRoCEv1(t *testing.T) {
	for _, pair := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}, {"fe80::ff:fe00:1", "fe80::ff:fe00:2"}} {
		var file bytes.Buffer
		w := newWriter(t, &file, pcap.Options{})
		a, b := openPair(t, sim.Config{}, w, v1(pair[0]), v1(pair[1]))
		want := sealed(t, a.Source(7), b.Addr())
		if err := a.Send(want); err != nil {
			t.Fatal(err)
		}
		got := make([]link.Datagram, 2*len(want))
		if n, err := b.Recv(got); n != len(want) || err != nil {
			t.Fatalf("%v: received %d, %v, want %d: %v", pair, n, err, len(want), a.Stats().LastSendError)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := capture.NewReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		var dec capture.Decoder
		for i := range 2 * len(want) { // sent and received
			f, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			p, kind := dec.Decode(f)
			if kind != capture.KindRoCE || p.Version != capture.RoCEv1 || p.Err != nil || p.ICRC() != capture.ICRCGood {
				t.Fatalf("%v: frame %d: kind %v, RoCEv%d, %v, ICRC %v", pair, i, kind, p.Version, p.Err, p.ICRC())
			}
			d := &want[i%len(want)]
			src, dst := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
			if p.Src.Addr().Unmap() != src || p.Dst.Addr().Unmap() != dst || p.TrafficClass != d.TrafficClass || p.FlowLabel != d.FlowLabel || !bytes.Equal(p.Datagram, d.Payload) {
				t.Errorf("%v: frame %d: from %v to %v, class %#x, label %#x", pair, i, p.Src, p.Dst, p.TrafficClass, p.FlowLabel)
			}
		}
	}
}

// TestRoCEv1Tshark has tshark decode such frames.
func TestRoCEv1Tshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	name := filepath.Join(t.TempDir(), "test.pcapng")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := newWriter(t, file, pcap.Options{OutgoingOnly: true})
	a, b := openPair(t, sim.Config{}, w, v1("10.0.0.1"), v1("10.0.0.2"))
	all := sealed(t, a.Source(7), b.Addr())
	if err := a.Send(all); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", name, "-T", "fields", "-e", "frame.protocols", "-e", "_ws.expert.message",
		"-e", "infiniband.grh.paylen", "-e", "infiniband.bth.psn").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(all) {
		t.Fatalf("tshark reads %d frames, want %d:\n%s", len(lines), len(all), out)
	}
	for i, line := range lines {
		f := strings.Split(line, "\t")
		if !strings.HasPrefix(f[0], "eth:ethertype:infiniband") || f[1] != "" || f[3] != "34" {
			t.Errorf("frame %d: tshark prints %q, want an InfiniBand packet of PSN 34 without a warning", i, line)
		}
	}
}

// TestConformanceRoCEv1 runs the suite of links on one of RoCEv1.
func TestConformanceRoCEv1(t *testing.T) {
	open := func(t *testing.T) (a, b link.Link) {
		w := newWriter(t, &bytes.Buffer{}, pcap.Options{})
		return openPair(t, sim.Config{}, w, v1("10.0.0.1"), v1("10.0.0.2"))
	}
	linktest.Run(t, open)
	linktest.TrafficClass(t, open)
}
