package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// read is a READ of n bytes, and response a packet of its answer.
func read(psn wire.PSN, n uint32) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadRequest, AckReq: true, PSN: psn}, RETH: wire.RETH{Length: n}}
}

func response(psn wire.PSN, op wire.Opcode) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}, Payload: make([]byte, 1024)}
}

// reads are READs of three packets each, of which some responses are left out.
func (s *script) reads(n int, without ...wire.PSN) {
	for psn := wire.PSN(0); psn < wire.PSN(3*n); psn += 3 {
		s.ab(read(psn, 3072))
		for i, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast} {
			if !slices.Contains(without, psn.Add(i)) {
				s.ba(response(psn.Add(i), op))
			}
		}
	}
}

// incompleteScripts are conversations that a capture does not have all of.
var incompleteScripts = []conversation{
	{"the end of a message is missing", func(s *script) {
		s.good(0, 3)
		s.ab(write(3, wire.RCRDMAWriteFirst, 1024))
		s.ab(write(4, wire.RCRDMAWriteMiddle, 1024))
	}, nil, []string{"CAP-CUT"}},
	{"the end of a READ's response is missing", func(s *script) {
		s.reads(2, 5)
	}, nil, []string{"CAP-CUT"}},
	{"a READ's response is missing, and nobody asks for it", func(s *script) {
		s.reads(3, 1)
	}, nil, []string{"CAP-HOLE"}},
	{"a READ's response is missing, and is asked for", func(s *script) {
		s.reads(1)
		s.ab(read(3, 3072))
		s.ba(response(3, wire.RCRDMAReadResponseFirst))
		s.ba(response(5, wire.RCRDMAReadResponseLast))
		s.ab(read(4, 2048))
		s.ba(response(4, wire.RCRDMAReadResponseFirst))
		s.ba(response(5, wire.RCRDMAReadResponseLast))
		s.good(6, 2)
	}, []string{"LOSS-NAK"}, nil},
}

// Nothing is made of what ends as it should, or goes on.
func TestWhole(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(s *script)
	}{
		{"whole messages", func(s *script) { s.good(0, 3); s.reads(1) }},
		{"a READ that is asked for again", func(s *script) { incompleteScripts[3].play(s) }},
		{"a READ's response that is overtaken", func(s *script) {
			s.ab(read(0, 3072))
			s.ba(response(0, wire.RCRDMAReadResponseFirst))
			s.ba(response(2, wire.RCRDMAReadResponseLast))
			s.ba(response(1, wire.RCRDMAReadResponseMiddle))
			s.ba(response(2, wire.RCRDMAReadResponseLast))
			s.good(3, 3)
		}},
		{"a message that stops long before the end", func(s *script) {
			s.good(0, 3)
			s.ab(write(3, wire.RCRDMAWriteFirst, 1024))
			s.now += time.Minute
			s.ab(toQP(send(0), 0x99))
		}},
	} {
		s := newScript()
		tt.play(s)
		for _, f := range s.report(diagnose.Options{}).Notes {
			if f.ID == "CAP-CUT" || f.ID == "CAP-HOLE" {
				t.Errorf("%s: %s: %s", tt.name, f.ID, f.Words)
			}
		}
	}
}

// Of queue pairs that are found midway it is not known what was agreed. The connection manager's are known.
func TestMidway(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(s *script)
		want string
	}{
		{"one end asks", func(s *script) { s.good(0, 3) }, "how 1 queue pair was connected was not captured: its path MTU, depth of READs and rnr_retry are not known"},
		{"both ends ask", func(s *script) { s.good(0, 3); s.ba(send(0)); s.ab(ack(0)) }, "how 2 queue pairs were"},
		{"the connection manager", func(s *script) { s.connect(); s.good(0, 3) }, ""},
	} {
		s := newScript()
		tt.play(s)
		got := ""
		for _, u := range s.report(diagnose.Options{}).Unchecked {
			if strings.HasPrefix(u, "how ") {
				got = u
			}
		}
		if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: not checked: %q, want %q", tt.name, got, tt.want)
		}
	}
}
