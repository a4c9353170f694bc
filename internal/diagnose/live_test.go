package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// going is a capture that goes on, of a script.
type going struct {
	*script
	a    *diagnose.Analyzer
	seen int
}

func newGoing() *going { return &going{newScript(), diagnose.New(diagnose.Options{}), 0} }

// news has the Analyzer take what the script has sent, and returns what is told when time has passed.
func (g *going) news(pass time.Duration) (ids []string) {
	for _, f := range g.frames[g.seen:] {
		g.a.Frame(f)
	}
	g.seen = len(g.frames)
	for end := g.now + pass; g.now < end; {
		g.now += time.Second
		g.a.Tick(int64(g.now) + 1e18)
		ids = append(ids, idsOf(g.a.News())...)
	}
	return ids
}

// Findings are told once, when they are certain.
func TestNews(t *testing.T) {
	for _, tt := range []struct {
		name string
		play func(g *going)
		pass time.Duration
		want []string
	}{
		{"nothing", func(g *going) { g.good(0, 5) }, 10 * time.Minute, nil},
		{"a refusal", func(g *going) {
			g.ab(write(0, wire.RCRDMAWriteOnly, 64))
			g.ba(answer(0, wire.SyndromeNAK(wire.NAKRemoteAccessError)))
		}, time.Second, []string{"NAK-ACCESS"}},
		{"a silent peer", func(g *going) {
			for range 4 {
				g.ab(write(7, wire.RCRDMAWriteOnly, 64))
				g.now += 500 * time.Millisecond
			}
		}, 5 * time.Second, []string{"RC-SILENT"}},
		{"a peer that answers late", func(g *going) {
			for range 4 {
				g.ab(write(7, wire.RCRDMAWriteOnly, 64))
				g.now += 500 * time.Millisecond
			}
			g.ba(ack(7))
		}, 5 * time.Second, []string{"LOSS-TIMEOUT"}},
		{"a link that goes down at the sender", func(g *going) {
			g.good(0, 5)
			g.ab(write(5, wire.RCRDMAWriteOnly, 64))
		}, 6 * time.Minute, []string{"RC-DIED"}},
		{"a host that is not there", func(g *going) {
			for range 3 {
				g.req(nil)
				g.now += 2 * time.Second
			}
		}, 15 * time.Second, []string{"CM-NOANSWER"}},
		{"a sender that gives up", func(g *going) {
			g.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, AckReq: true}})
			g.ba(answer(0, wire.SyndromeRNR(12)))
		}, 20 * time.Second, []string{"RNR", "RNR"}}, // as a warning, and as an error
	} {
		g := newGoing()
		tt.play(g)
		if got := g.news(tt.pass); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		if again := g.news(10 * time.Minute); len(again) > 0 {
			t.Errorf("%s: %v is told again", tt.name, again)
		}
	}
}

// A finding is told again when it has become ten times as many.
func TestNewsAgain(t *testing.T) {
	g := newGoing()
	var told []int
	for i := range 200 {
		g.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: wire.PSN(i), AckReq: true}})
		g.ba(answer(wire.PSN(i), wire.SyndromeRNR(1)))
		g.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: wire.PSN(i), AckReq: true}})
		g.ba(ack(wire.PSN(i)))
		if len(g.news(time.Second)) > 0 {
			told = append(told, i+1)
		}
	}
	if !slices.Equal(told, []int{1, 10, 100}) {
		t.Errorf("told after %v, want after 1, 10 and 100", told)
	}
}

// A capture that goes on without end keeps telling, though it keeps no more than it did at first.
func TestEndless(t *testing.T) {
	g := newGoing()
	told := 0
	for i := range uint32(2000) {
		g.frames, g.seen = g.frames[:0], 0
		w := write(7, wire.RCRDMAWriteOnly, 64)
		w.DestQP = 100 + i
		g.ab(w)
		w = answer(7, wire.SyndromeNAK(wire.NAKRemoteAccessError))
		w.DestQP = 100000 + i
		g.ba(w)
		told += len(g.news(30 * time.Second))
	}
	r := g.a.Report()
	if told != 2000 || len(r.Findings) > 64 || r.Omitted != 2000-len(r.Findings) {
		t.Errorf("%d findings were told, %d are in the report, %d more are counted; want 2000, at most 64, the rest", told, len(r.Findings), r.Omitted)
	}
	if slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.Contains(s, "forgotten") }) {
		t.Errorf("not checked: %q", r.Unchecked)
	}
}

// Frames that the capture has missed are named, and put findings in doubt that they may explain.
func TestLost(t *testing.T) {
	s := newScript()
	s.good(0, 5)
	s.ab(write(5, wire.RCRDMAWriteOnly, 64))
	s.now += 500 * time.Millisecond
	s.ab(write(5, wire.RCRDMAWriteOnly, 64))
	s.ba(ack(5))
	a := diagnose.New(diagnose.Options{})
	for _, f := range s.frames {
		a.Frame(f)
	}
	a.Lost(17)
	r := a.Report()
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].WrongIf, "missed frames itself") || !slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.HasPrefix(s, "17 frames came faster") }) {
		t.Errorf("%+v, not checked: %q; want 17 frames, and a finding that is in doubt", r.Findings, r.Unchecked)
	}
}

// The packets of a train are judged as those that were sent: with identifications of their own.
func TestTrain(t *testing.T) {
	s := newScript()
	s.train(write(0, wire.RCRDMAWriteOnly, 1024), write(1, wire.RCRDMAWriteOnly, 1024), write(2, wire.RCRDMAWriteOnly, 100))
	s.ba(ack(2))
	if r := s.report(diagnose.Options{}); r.RoCE != 4 || !slices.Equal(idsOf(r.Notes), []string{"CAP-TRAIN"}) {
		t.Errorf("%d packets, %v; want 4, and CAP-TRAIN alone", r.RoCE, idsOf(r.Notes))
	}
}

// A packet of a train is no train, even if somebody has put packets into it.
func TestTrainInTrain(t *testing.T) {
	s := newScript()
	var packets []wire.Packet
	for i, n := range []int{64, 64, 16, 16, 64} { // those of 16 bytes are half as long, with their headers
		packets = append(packets, write(wire.PSN(i), wire.RCRDMAWriteOnly, n))
	}
	s.train(packets...)
	if r := s.report(diagnose.Options{}); r.RoCE != 4 {
		t.Errorf("%d packets, want 4", r.RoCE)
	}
}
