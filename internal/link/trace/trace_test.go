package trace_test

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/link/trace"
)

func openPair(t *testing.T, mw ...link.Middleware) (a, b link.Link) {
	t.Helper()
	n := sim.New(sim.Config{IDVisible: true})
	open := func(s string) link.Link {
		addr := netip.MustParseAddr(s)
		l, err := n.Netdev(s, addr).Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		return link.Chain(l, mw...)
	}
	return open("10.0.0.1"), open("10.0.0.2")
}

func TestConformance(t *testing.T) {
	open := func(t *testing.T) (a, b link.Link) {
		return openPair(t, trace.New(time.Now(), trace.ToWriter(&bytes.Buffer{}, "dev")))
	}
	linktest.Run(t, open)
	linktest.TrafficClass(t, open)
	linktest.Allocs(t, func(t *testing.T) (a, b link.Link) { return openPair(t, trace.New(time.Now(), func(trace.Event) {})) })
}

// ack is an RC acknowledge to QP 0x11, of PSN 0x22, MSN 3, with an ICRC of zeros.
var ack = []byte{0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0x22, 0x1f, 0, 0, 3, 0, 0, 0, 0}

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		tracer := trace.New(time.Now(), trace.ToWriter(&out, "dev"))
		a, b := openPair(t, tracer)
		defer a.Close()
		defer b.Close()
		pass := func(d time.Duration) {
			if err := a.Wait(d); err != nil { // nothing comes: the bubble's clock steps on
				t.Fatal(err)
			}
		}
		pass(1500 * time.Microsecond)
		if err := a.Send([]link.Datagram{
			{Src: a.Source(1), Dst: b.Addr(), Payload: append(bytes.Clone(ack), ack...), SegmentSize: len(ack)},
			{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("hello")},
		}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if n, err := b.Recv(make([]link.Datagram, 4)); n != 3 || err != nil {
			t.Fatalf("Recv = %d, %v; want 3", n, err)
		}
		from, to := regexp.QuoteMeta(a.Source(1).String()), regexp.QuoteMeta(b.Addr().String())
		for i, want := range []string{
			`0\.001500 dev send ` + from + ` > ` + to + ` RC ACKNOWLEDGE .*0x000011.*0x000022.*`,
			`0\.001500 dev send .* RC ACKNOWLEDGE .*`,
			`0\.001500 dev send .* undecodable, 5 bytes: .+`,
			`1\.001500 dev recv ` + from + ` > ` + to + ` RC ACKNOWLEDGE .*0x000011.*0x000022.*`,
			`1\.001500 dev recv .* RC ACKNOWLEDGE .*`,
			`1\.001500 dev recv .* undecodable, 5 bytes: .+`,
			``,
		} {
			lines := strings.Split(out.String(), "\n")
			if i >= len(lines) {
				t.Fatalf("%d lines, want more:\n%s", len(lines), out.String())
			}
			if !regexp.MustCompile("^" + want + "$").MatchString(lines[i]) {
				t.Errorf("line %d is %q, want it to match %q", i, lines[i], want)
			}
		}
	})
}

func TestEvents(t *testing.T) {
	var got []trace.Event
	a, b := openPair(t, trace.New(time.Now(), func(e trace.Event) {
		e.Payload = bytes.Clone(e.Payload)
		got = append(got, e)
	}))
	defer a.Close()
	defer b.Close()
	if err := a.Send([]link.Datagram{{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("aabbc"), SegmentSize: 2, TrafficClass: 4, FlowLabel: 7}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(make([]link.Datagram, 4)); err != nil {
		t.Fatal(err)
	}
	if len(got) != 6 {
		t.Fatalf("%d events, want 3 sent and 3 received", len(got))
	}
	for i, e := range got {
		if want := []string{"aa", "bb", "c"}[i%3]; string(e.Payload) != want || e.Sent != (i < 3) ||
			!e.IDKnown || e.ID != uint16(i%3) || e.Src != a.Source(1) || e.Dst != b.Addr() || e.TrafficClass != 4 || e.FlowLabel != 7 {
			t.Errorf("event %d is %+v; want payload %q, identification %d", i, e, want, i%3)
		}
	}
}
