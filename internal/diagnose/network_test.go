package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Bits of ECN in a traffic class.
const (
	ect = 2
	ce  = 3
)

// networkScripts are conversations that show something of the network: congestion, priorities.
var networkScripts = []conversation{
	{"pauses", func(s *script) {
		for psn := range wire.PSN(3) {
			s.pause(0xffff)
			s.good(psn, 1)
		}
	}, []string{"PFC"}, nil},
	{"a pause now and then", func(s *script) {
		for psn := range wire.PSN(3) {
			s.pause(0xffff)
			s.pause(0)
			s.now += 10 * time.Millisecond
			s.good(psn, 1)
		}
	}, nil, []string{"PFC"}},
	{"one pause", func(s *script) { s.pause(0xffff); s.good(0, 1) }, nil, []string{"PFC"}},
	{"marks and no CNP", func(s *script) {
		for psn := range wire.PSN(3) {
			s.marked(psn, ce)
		}
		s.now += 3 * time.Second
		s.good(3, 2)
	}, []string{"ECN-NOCNP"}, nil},
	{"marks and CNPs", func(s *script) {
		for psn := range wire.PSN(3) {
			s.marked(psn, ce)
			s.ba(wire.NewCNP(qpA, wire.DefaultPKey))
		}
		s.now += 3 * time.Second
		s.good(3, 2)
	}, []string{"CNP"}, nil},
	{"one mark in two hundred, with its CNP", func(s *script) {
		for psn := range wire.PSN(200) {
			if psn == 100 {
				s.marked(psn, ce)
				s.ba(wire.NewCNP(qpA, wire.DefaultPKey))
			} else {
				s.marked(psn, ect)
			}
		}
		s.now += 3 * time.Second
		s.good(200, 2)
	}, nil, []string{"CNP"}},
	{"CNPs with the data's priority", func(s *script) {
		s.class = 26<<2 | ect
		s.good(0, 3)
		s.ba(write(0, wire.RCRDMAWriteOnly, 64))
		s.ab(ack(0))
		for range 3 {
			s.ba(wire.NewCNP(qpA, wire.DefaultPKey))
		}
	}, []string{"CNP"}, []string{"CNP-DSCP"}},
	{"two priorities", func(s *script) {
		s.class = 26 << 2
		s.ab(write(0, wire.RCRDMAWriteOnly, 64))
		s.class = 0
		s.ba(ack(0))
		s.ba(write(0, wire.RCRDMAWriteOnly, 64))
		s.class = 26 << 2
		s.ab(ack(0))
	}, []string{"DSCP-MIX"}, nil},
	{"two priorities in one direction", func(s *script) {
		for psn := range wire.PSN(4) {
			s.marked(psn, uint8(psn%2)*26<<2|ect)
		}
	}, []string{"DSCP-MIX"}, nil},
	{"two VLAN priorities", func(s *script) {
		s.tagged(1, 2, 3, s.bytes(s.a, s.b, toQP(send(0), qpB)))
		s.tagged(2, 1, 0, s.bytes(s.b, s.a, toQP(ack(0), qpA)))
		s.tagged(2, 1, 0, s.bytes(s.b, s.a, toQP(send(0), qpA)))
		s.tagged(1, 2, 3, s.bytes(s.a, s.b, toQP(ack(0), qpB)))
	}, []string{"DSCP-MIX"}, nil},
	{"a host's capture without the tags of what comes in", func(s *script) {
		s.tagged(1, 2, 3, s.bytes(s.a, s.b, toQP(send(0), qpB)))
		s.putEther(2, 1, s.bytes(s.b, s.a, toQP(ack(0), qpA)))
		s.putEther(2, 1, s.bytes(s.b, s.a, toQP(send(0), qpA)))
		s.tagged(1, 2, 3, s.bytes(s.a, s.b, toQP(ack(0), qpB)))
	}, nil, nil},
	{"another program with another priority uses the number again", func(s *script) {
		s.class = 26 << 2
		s.good(0, 5)
		s.class = 0
		s.good(500000, 5)
	}, nil, nil},
}

// pause sends a pause frame of priority 3.
func (s *script) pause(quanta uint16) {
	b := append(make([]byte, 12), 0x88, 0x08, 1, 1, 0, 8)
	b = append(b, make([]byte, 16)...)
	b[18+2*3], b[19+2*3] = byte(quanta>>8), byte(quanta)
	n := s.put(b, 0)
	s.frames[n-1].Link = capture.LinkEthernet
}

// tagged appends an IP packet in an Ethernet frame of VLAN 5, with a priority.
func (s *script) tagged(from, to byte, pcp uint8, ip []byte) {
	b := append(ether(from, to, 0x8100), pcp<<5, 5, 0x08, 0)
	n := s.put(append(b, ip...), 0)
	s.frames[n-1].Link = capture.LinkEthernet
}

// marked sends a WRITE with a traffic class, and answers it.
func (s *script) marked(psn wire.PSN, class uint8) {
	s.class = class
	s.ab(write(psn, wire.RCRDMAWriteOnly, 64))
	s.class = ect
	s.ba(ack(psn))
}

// Marks and CNPs of one direction are one finding, with the numbers of both.
func TestCongestion(t *testing.T) {
	s := newScript()
	for psn := range wire.PSN(4) {
		s.marked(psn, ce)
		s.ba(wire.NewCNP(qpA, wire.DefaultPKey))
	}
	r := s.report(diagnose.Options{})
	if len(r.Findings) != 1 || !strings.HasPrefix(r.Findings[0].Words, "4 of 4 packets are marked (CE), and 4 CNPs came back.") || r.Findings[0].Where != "10.1.0.1 → 10.1.0.2" {
		t.Errorf("%+v, want one finding, of the direction that is marked", r.Findings)
	}
}

// While a capture goes on, congestion is told when it is more than a mark now and then.
func TestCongestionLive(t *testing.T) {
	g := newGoing()
	var told []string
	for psn := range wire.PSN(400) {
		class := uint8(ect)
		if psn >= 200 || psn == 10 {
			class = ce
		}
		g.marked(psn, class)
		if class == ce {
			g.ba(wire.NewCNP(qpA, wire.DefaultPKey))
		}
		if psn%50 == 49 {
			ids := g.news(time.Second)
			if told = append(told, ids...); psn < 200 && len(ids) > 0 {
				t.Fatalf("after %d packets, of which one was marked: %v", psn, ids)
			}
		}
	}
	if !slices.Contains(told, "CNP") {
		t.Errorf("told: %v, want CNP", told)
	}
}

// A pause ends at the next frame for its priority, and the time is a share of that of the capture.
func TestPauses(t *testing.T) {
	s := newScript()
	s.good(0, 1)
	s.pause(10000) // 51.2 µs, of which 10 pass
	s.pause(0)
	s.pause(10000)
	s.now += 940 * time.Microsecond
	s.good(1, 1)
	for _, f := range s.report(diagnose.Options{}).Notes {
		if f.ID == "PFC" {
			if !strings.Contains(f.Words, "2 frames stop it for 61.2µs, 6.1 % of the time") || f.Count != 2 {
				t.Errorf("%d: %q", f.Count, f.Words)
			}
			return
		}
	}
	t.Error("no note PFC")
}
