package diagnose_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// silenceScripts are conversations in which a queue pair's requests are not answered, and the capture shows why.
var silenceScripts = []conversation{
	{"a link-local address sends to one that is routed", func(s *script) {
		s.a, s.b = netip.MustParseAddr("fe80::a3"), netip.MustParseAddr("fd98::2")
		s.silent(8, nil)
	}, []string{"GID-LL"}, nil},
	{"one end sends by link-local addresses, the other by routed ones", func(s *script) {
		local, routed := *s, *s
		local.a, local.b = netip.MustParseAddr("fe80::a3"), netip.MustParseAddr("fe80::a2")
		routed.a, routed.b = netip.MustParseAddr("fd98::3"), netip.MustParseAddr("fd98::2")
		s.silent(8, func() {
			s.putEther(1, 2, local.bytes(local.a, local.b, toQP(send(5000), qpB)))
			s.putEther(2, 1, routed.bytes(routed.b, routed.a, toQP(send(6000), qpA)))
		})
	}, []string{"GID-LL"}, nil},
	{"one end sends RoCE v1, the other v2", func(s *script) {
		s.silent(8, func() {
			s.putV1(1, 2, netip.MustParseAddr("fe80::a3"), netip.MustParseAddr("fe80::a2"), toQP(send(5000), qpB))
			s.putEther(2, 1, s.bytes(s.b, s.a, toQP(send(6000), qpA)))
		})
	}, []string{"GID-LL"}, nil},
	{"a REQ that is sent once", func(s *script) { s.req(nil); s.later() }, []string{"CM-NOANSWER"}, nil},
	{"a sender that stops when its peer does", func(s *script) { s.good(0, 5); s.ab(send(5)); s.later() }, []string{"RC-DIED"}, nil},
	{"link-local addresses at both ends, of which one is dead", func(s *script) {
		s.a, s.b = netip.MustParseAddr("fe80::a3"), netip.MustParseAddr("fe80::a2")
		s.silent(8, nil)
	}, []string{"RC-SILENT"}, nil},
	{"the P_Keys differ", func(s *script) {
		s.silent(8, func() { s.pKey = 0x8001; s.ab(send(5000)); s.pKey = wire.DefaultPKey; s.ba(send(700)) })
	}, []string{"PKEY"}, nil},
	{"the P_Keys differ, and one end takes them", func(s *script) {
		for psn := range wire.PSN(3) {
			s.ba(send(700 + psn))
			s.pKey = 0x8001
			s.ab(ack(700 + psn))
			s.pKey = wire.DefaultPKey
		}
		s.pKey = 0x8001
		s.silent(8, nil)
	}, []string{"PKEY"}, nil},
	{"both ends are limited members of a partition", func(s *script) {
		s.pKey = 0x7fff
		s.silent(8, func() { s.ab(send(5000)); s.ba(send(700)) })
	}, []string{"PKEY"}, nil},
	{"another queue pair of the host has another P_Key", func(s *script) {
		psn := wire.PSN(900)
		s.silent(8, func() {
			s.ab(send(5000))
			s.ba(send(700))
			s.pKey = 0x8001
			s.ba(toQP(send(psn), 0x77))
			s.ab(toQP(ack(psn), 0x88))
			psn++
			s.pKey = wire.DefaultPKey
		})
	}, []string{"RC-SILENT"}, nil},
	{"a router says that its link has a smaller MTU", func(s *script) {
		s.silent(4, func() { s.ab(write(100, wire.RCRDMAWriteFirst, 4096)); s.tooLong(1500) })
	}, []string{"MTU-ICMP"}, nil},
	{"the same, and short requests are answered", func(s *script) {
		s.good(0, 5)
		s.silent(4, func() { s.ab(write(5, wire.RCRDMAWriteFirst, 4096)); s.tooLong(1500) })
	}, []string{"MTU-ICMP"}, nil},
	{"the same, and the sender takes a smaller path MTU", func(s *script) {
		s.ab(write(0, wire.RCRDMAWriteFirst, 4096))
		s.tooLong(1500)
		s.now += 10 * time.Microsecond
		s.good(0, 5)
	}, []string{"MTU-ICMP"}, nil},
	{"a router says so of other packets", func(s *script) {
		s.ab(toQP(write(100, wire.RCRDMAWriteFirst, 4096), 0x33))
		s.tooLong(1500)
		s.silent(4, nil)
	}, []string{"MTU-ICMP", "RC-SILENT"}, nil},
	{"the receiver waits for a lower PSN", func(s *script) {
		s.silent(8, func() { s.ab(send(5000)); s.ba(nak(100)) })
	}, []string{"PSN-MISMATCH"}, nil},
	{"the same, and the sender repeats at once", func(s *script) {
		for range 8 {
			s.ab(send(5000))
			s.ba(nak(4990))
		}
	}, []string{"PSN-MISMATCH"}, nil},
	{"the same, of ends that the connection manager has connected", func(s *script) {
		s.connect()
		s.silent(8, func() { s.ab(send(5000)); s.ba(nak(100)) })
	}, []string{"PSN-MISMATCH"}, nil},
	{"the receiver waits for a higher PSN", func(s *script) {
		s.silent(8, func() { s.ab(send(5000)); s.ba(ack(8999)) })
	}, []string{"PSN-MISMATCH"}, nil},
	{"the same, of ends that the connection manager has connected, with a READ", func(s *script) {
		s.connect()
		s.silent(8, func() {
			w := send(5000)
			w.Opcode, w.Payload, w.RETH = wire.RCRDMAReadRequest, nil, wire.RETH{Length: 8}
			s.ab(w)
			s.ba(ack(8999))
		})
	}, []string{"PSN-MISMATCH"}, nil},
	{"a silent queue pair, while another one of its hosts is answered", func(s *script) {
		psn := wire.PSN(100)
		s.silent(8, func() {
			s.ab(send(5000))
			s.ab(toQP(send(psn), 0x33))
			s.ba(toQP(ack(psn), 0x44))
			s.ba(toQP(ack(psn), 0x44))
			psn++
		})
	}, []string{"RC-SILENT"}, nil},
	{"a silent queue pair, and answers to one that was found midway", func(s *script) {
		s.ba(toQP(ack(99), 0x44))
		s.silent(8, func() { s.ab(send(5000)) })
	}, []string{"RC-SILENT"}, nil},
	{"two hosts are silent by different addresses, and each to a third one", func(s *script) {
		s.silent(8, func() {
			s.putV1(1, 2, netip.MustParseAddr("fe80::a3"), netip.MustParseAddr("fe80::a2"), toQP(send(5000), qpB))
			s.putEther(2, 3, s.bytes(s.b, s.a, toQP(send(6000), qpA)))
		})
	}, []string{"RC-SILENT"}, nil},
}

// send is a SEND of 64 bytes.
func send(psn wire.PSN) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: psn, AckReq: true}, Payload: make([]byte, 64)}
}

func toQP(w wire.Packet, qpn uint32) wire.Packet {
	w.DestQP = qpn
	return w
}

func nak(psn wire.PSN) wire.Packet { return answer(psn, wire.SyndromeNAK(wire.NAKSequenceError)) }

// tooLong sends the ICMP message that the latest packet does not fit into a link.
func (s *script) tooLong(mtu int) {
	quoted := s.frames[len(s.frames)-1].Data[:28]
	b := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, quoted...)
	s.put(append(ipv4(netip.MustParseAddr("10.9.9.9"), s.a, 0, 1, 1, len(b)), b...), 0)
}

// later is a frame of something else, a minute later.
func (s *script) later() {
	s.now += time.Minute
	s.put(append(ipv4(s.a, s.b, 0, 17, 1, 28), make([]byte, 28)...), 0)
}

// silent sends a request n times, half a second apart, or what each is in place of it.
func (s *script) silent(n int, each func()) {
	for range n {
		if each != nil {
			each()
		} else {
			s.ab(send(5000))
		}
		s.now += 500 * time.Millisecond
	}
}

// ether is the header of an Ethernet frame between hosts of some numbers.
func ether(from, to byte, kind uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from}, kind)
}

// putEther appends an IP packet in an Ethernet frame.
func (s *script) putEther(from, to byte, ip []byte) int {
	kind := uint16(0x0800)
	if ip[0]>>4 == 6 {
		kind = 0x86dd
	}
	n := s.put(append(ether(from, to, kind), ip...), 0)
	s.frames[n-1].Link = capture.LinkEthernet
	return n
}

// putV1 appends a packet of RoCE v1, whose ICRC the card is to fill in.
func (s *script) putV1(from, to byte, src, dst netip.Addr, w wire.Packet) int {
	w.PKey = s.pKey
	datagram := w.AppendTo(nil)
	b := append(ether(from, to, 0x8915), 0x60, 0, 0, 0)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(datagram))), 0x1b, 64)
	g, h := src.As16(), dst.As16()
	n := s.put(append(append(append(b, g[:]...), h[:]...), datagram...), 0)
	s.frames[n-1].Link = capture.LinkEthernet
	return n
}

// docs/DIAGNOSE.md lists these conversations.
func TestSilenceDocument(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("| why nothing is answered | finding |\n|---|---|\n")
	for _, c := range silenceScripts {
		rows.WriteString("| " + c.name + " | " + cmp.Or(strings.Join(c.findings, ", "), "nothing") + " |\n")
	}
	compareDocument(t, "silence", rows.String())
}

// Ends that send to each other by different kinds of GIDs have one finding, which names both, with the frames and the
// filter of both.
func TestMixedPaths(t *testing.T) {
	s := newScript()
	silenceScripts[1].play(s)
	r := s.report(diagnose.Options{})
	if len(r.Findings) != 1 {
		t.Fatalf("%v, want GID-LL once", idsOf(r.Findings))
	}
	f := r.Findings[0]
	if !slices.Contains(f.Frames, 3) || !slices.Contains(f.Frames, 4) || !strings.Contains(f.Words, "fe80::a3") || !strings.Contains(f.Words, "fd98::2") || !strings.Contains(f.Filter, "fd98::3") {
		t.Errorf("frames %v, filter %q, %q; want those of both ends", f.Frames, f.Filter, f.Words)
	}
}

// Ends that begin with different PSNs: the finding has both numbers.
func TestWrongPSN(t *testing.T) {
	for _, tt := range []struct {
		answer wire.Packet
		want   string
	}{
		{nak(100), "the sender's sq_psn is 5000, and the receiver's rq_psn is 100."},
		{ack(8999), "the sender's sq_psn is 5000, and the receiver's rq_psn is 9000."},
	} {
		s := newScript()
		s.silent(3, func() { s.ab(send(5000)); s.ba(tt.answer) })
		r := s.report(diagnose.Options{})
		if len(r.Findings) != 1 || !strings.HasSuffix(r.Findings[0].Words, tt.want) || !slices.Equal(r.Findings[0].Frames, []int{2, 4, 6}) {
			t.Errorf("%+v, want %q in frames 2, 4 and 6", r.Findings, tt.want)
		}
	}
}

// A NAK for a sequence error after which nothing is sent again is no loss. In a capture of the answers alone it is.
func TestNAKAlone(t *testing.T) {
	for _, requests := range []bool{true, false} {
		s := newScript()
		for psn := range wire.PSN(6) {
			if requests {
				s.ab(send(psn))
			}
			if psn == 3 {
				s.ba(nak(2))
			} else {
				s.ba(ack(psn))
			}
		}
		if got := slices.Contains(idsOf(s.report(diagnose.Options{}).Findings), "LOSS-NAK"); got == requests {
			t.Errorf("requests in the capture: %v, LOSS-NAK: %v; want the opposite", requests, got)
		}
	}
}

// While a capture goes on, ends that do not agree on the first PSN are not taken for losses.
func TestWrongPSNLive(t *testing.T) {
	g := newGoing()
	var told []string
	for range 8 {
		g.ab(send(5000))
		g.ba(nak(100))
		told = append(told, g.news(time.Second)...)
	}
	if told = append(told, g.news(10*time.Minute)...); !slices.Equal(told, []string{"PSN-MISMATCH"}) {
		t.Errorf("told: %v, want PSN-MISMATCH once", told)
	}
}

// What a router says of its MTU is told with the path MTU that would fit. It is an error where requests are not answered.
func TestTooLong(t *testing.T) {
	for _, tt := range []struct {
		mtu      int
		want     string
		severity diagnose.Severity
		repeats  int
	}{
		{1500, "10.9.9.9 answers with ICMP: the MTU of its link is 1500. The path MTU in use is 4096; 1024 would fit.", diagnose.Error, 4},
		{4000, "4000. The path MTU in use is 4096; 2048 would fit.", diagnose.Warning, 1},
		{1091, "1091. The path MTU in use is 4096; 512 would fit.", diagnose.Error, 4},
		{0, "a packet is too long for its link, and must not be fragmented. The path MTU in use is 4096.", diagnose.Error, 4},
	} {
		s := newScript()
		s.silent(tt.repeats, func() { s.ab(write(100, wire.RCRDMAWriteFirst, 4096)); s.tooLong(tt.mtu) })
		r := s.report(diagnose.Options{})
		if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Words, tt.want) || r.Findings[0].Severity != tt.severity {
			t.Errorf("an MTU of %d: %+v, want %q as %v", tt.mtu, r.Findings, tt.want, tt.severity)
		}
	}
}

// A P_Key that differs is a warning where requests are answered all the same.
func TestPKeys(t *testing.T) {
	for _, answered := range []bool{true, false} {
		s := newScript()
		s.pKey = 0x8001
		if answered {
			s.ab(send(0))
		} else {
			s.silent(4, nil)
		}
		s.pKey = wire.DefaultPKey
		if answered {
			s.ba(ack(0))
		} else {
			s.ba(send(700))
		}
		want := map[bool]diagnose.Severity{true: diagnose.Warning, false: diagnose.Error}[answered]
		r := s.report(diagnose.Options{})
		if len(r.Findings) != 1 || r.Findings[0].ID != "PKEY" || r.Findings[0].Severity != want || !strings.Contains(r.Findings[0].Words, "10.1.0.1 sends with P_Key 0x8001, and 10.1.0.2 with 0xffff.") {
			t.Errorf("answered: %v: %+v, want PKEY as %v", answered, r.Findings, want)
		}
	}
}
