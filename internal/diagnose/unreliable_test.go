package diagnose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// datagram is a packet of UD from qpA.
func datagram(psn wire.PSN) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PSN: psn}, DETH: wire.DETH{QKey: 0x1111, SrcQP: qpA}, Payload: make([]byte, 8)}
}

// unreliableScripts are conversations over UC and UD.
var unreliableScripts = []conversation{
	{"UC with a hole", func(s *script) {
		for _, psn := range []wire.PSN{0, 1, 2, 5, 6} {
			s.ab(write(psn, wire.UCRDMAWriteOnly, 64))
		}
	}, []string{"UD-DROP"}, nil},
	{"UD with a hole", func(s *script) {
		for _, psn := range []wire.PSN{0, 1, 2, 5, 6} {
			s.ab(datagram(psn))
		}
	}, nil, []string{"UD-DROP"}},
}

// PSNs that are missing in UD are counted, unless another peer of the sender has them, or they come later.
func TestMissingDatagrams(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(s *script)
		want string // "" for no finding
	}{
		{"two holes", func(s *script) {
			for _, psn := range []wire.PSN{0xfffffe, 0, 1, 3} {
				s.ab(datagram(psn))
			}
		}, "2 PSNs are missing in all, the last before PSN 0x000003"},
		{"two peers", func(s *script) {
			for psn := range wire.PSN(6) {
				s.ab(toQP(datagram(psn), 0x22+uint32(psn%2)))
			}
		}, ""},
		{"two senders", func(s *script) {
			for psn := range wire.PSN(6) {
				s.ab(datagram(100 + psn))
				w := datagram(5000 + psn)
				w.DETH.SrcQP = 0x99
				s.ab(w)
			}
		}, ""},
	} {
		s := newScript()
		tt.play(s)
		got := ""
		for _, f := range s.report(diagnose.Options{}).Notes {
			if f.ID == "UD-DROP" {
				got = f.Words
			}
		}
		if got == "" && tt.want != "" || !strings.Contains(got, tt.want) || got != "" && tt.want == "" {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// The network is cleared of what answers were captured of alone.
func TestCleared(t *testing.T) {
	const cleared, ofAnswers, trace, unknown = "it was not the network, as far as", "Where answers were captured, it was not the network", "losses may leave no trace", "whether they arrived is not known"
	all := []string{cleared, ofAnswers, trace, unknown}
	for _, tt := range []struct {
		name string
		play func(s *script)
		want []string
	}{
		{"RC", func(s *script) { s.good(0, 5) }, []string{cleared}},
		{"a connection without data", func(s *script) { s.connect() }, []string{cleared}},
		{"UD", func(s *script) { s.ab(datagram(0)) }, []string{trace}},
		{"UC", func(s *script) { s.ab(write(0, wire.UCRDMAWriteOnly, 64)) }, []string{trace}},
		{"RC and UD", func(s *script) { s.good(0, 5); s.ab(toQP(datagram(0), 0x44)) }, []string{ofAnswers, trace}},
		{"requests of RC alone", func(s *script) { s.ab(send(0)); s.ab(send(1)) }, []string{unknown}},
		{"answers of RC alone", func(s *script) { s.ba(ack(0)); s.ba(ack(1)) }, []string{unknown}},
	} {
		s := newScript()
		tt.play(s)
		r := s.report(diagnose.Options{})
		for _, part := range all {
			if want := slices.Contains(tt.want, part); want != strings.Contains(r.Verdict, part) {
				t.Errorf("%s: %q has %q: %v, want %v", tt.name, r.Verdict, part, !want, want)
			}
		}
		line := slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.Contains(s, "packets of UD and UC") })
		if want := slices.Contains(tt.want, trace); line != want {
			t.Errorf("%s: not checked: %q; UD and UC among it: %v, want %v", tt.name, r.Unchecked, line, want)
		}
	}
}
