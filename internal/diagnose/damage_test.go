package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// damageScripts are conversations with a packet whose ICRC is wrong.
var damageScripts = []conversation{
	{"a damaged packet", func(s *script) {
		s.good(0, 3)
		s.damaged(send(3))
		s.ab(send(4))
		s.ba(nak(3))
		s.good(3, 2)
	}, []string{"ICRC-BAD", "LOSS-NAK"}, nil},
	{"a packet that the capture has damaged", func(s *script) {
		s.good(0, 3)
		s.damaged(send(3))
		s.good(4, 1)
	}, nil, []string{"ICRC-BAD"}},
	{"the first packet, damaged by the capture", func(s *script) {
		s.ba(send(700)) // the other end's packets are whole
		s.ab(ack(700))
		s.damaged(send(3))
		s.good(4, 1)
	}, nil, []string{"ICRC-BAD"}},
	{"a packet that the capture has damaged, and one that the network has", func(s *script) {
		s.good(0, 3)
		s.damaged(send(3))
		s.good(4, 1)
		s.damaged(send(5))
		s.ab(send(6))
		s.ba(nak(5))
		s.good(5, 2)
	}, []string{"ICRC-BAD", "LOSS-NAK"}, nil},
}

// What a receiver acknowledged without a repeat was whole, and is no hole of the capture either.
func TestDamagedByCapture(t *testing.T) {
	s := newScript()
	damageScripts[1].play(s)
	r := s.report(diagnose.Options{})
	if len(r.Notes) != 1 || r.Notes[0].Certainty != diagnose.Hint || !strings.HasPrefix(r.Notes[0].Words, "1 of 5 packets. ") || !strings.Contains(r.Notes[0].Words, "arrived whole") {
		t.Errorf("%v: %+v, want the hint ICRC-BAD alone", idsOf(r.Notes), r.Notes[0])
	}
}

// While a capture goes on, a damaged packet is told when it came again.
func TestDamageLive(t *testing.T) {
	for i, want := range [][]string{{"ICRC-BAD", "LOSS-NAK"}, nil} {
		g := newGoing()
		damageScripts[i].play(g.script)
		if got := g.news(5 * time.Second); !slices.Equal(got, want) {
			t.Errorf("%s: told %v, want %v", damageScripts[i].name, got, want)
		}
	}
}

// A NAK for a sequence error alone proves no loss: the packet may have been overtaken. One that was damaged is lost.
func TestCertaintyOfLoss(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		s := newScript()
		s.good(0, 3)
		if damaged {
			s.damaged(send(3))
		}
		s.ab(send(4))
		s.ba(nak(3))
		s.good(3, 2)
		want := map[bool]diagnose.Certainty{false: diagnose.Likely, true: diagnose.Proven}[damaged]
		for _, f := range s.report(diagnose.Options{}).Findings {
			if f.ID == "LOSS-NAK" && f.Certainty != want {
				t.Errorf("a damaged packet: %v: LOSS-NAK is %v, want %v", damaged, f.Certainty, want)
			}
		}
	}
}

// A direction of which fragments were captured is no missing one.
func TestFragments(t *testing.T) {
	for _, fragments := range []bool{false, true} {
		s := newScript()
		for psn := range wire.PSN(4) {
			if fragments {
				b := s.bytes(s.a, s.b, toQP(write(psn, wire.RCRDMAWriteOnly, 1024), qpB))
				b[6] = 0x20 // more follow
				s.put(b[:620], 0)
			}
			s.ba(ack(psn))
		}
		if got := slices.Contains(idsOf(s.report(diagnose.Options{}).Notes), "CAP-ONEWAY"); got == fragments {
			t.Errorf("fragments: %v, CAP-ONEWAY: %v; want the opposite", fragments, got)
		}
	}
}
