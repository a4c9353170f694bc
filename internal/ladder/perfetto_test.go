package ladder_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// recorded is a capture of both ends, by two devices on a simulated network: a SEND and its answer, with the work
// requests, and a second SEND that fails.
func recorded(t testing.TB) []byte {
	t.Helper()
	var file bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	w, err := pcap.New(&file, pcap.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	net := sim.New(sim.Config{})
	var links [2]link.Link
	for i, addr := range []netip.Addr{addrA.Addr(), addrB.Addr()} {
		if links[i], err = net.Netdev(fmt.Sprint("sim", i), addr).Open(addr); err != nil {
			t.Fatal(err)
		}
		links[i] = w.Middleware()(links[i])
		defer links[i].Close()
	}
	tell := func(after time.Duration, e journal.Event) {
		now = now.Add(after)
		w.Journal(e)
	}
	sendOnly := send(1)
	transmit := func(after time.Duration, from, to link.Link, p wire.Packet) {
		now = now.Add(after)
		p.PKey = 0xffff
		datagram := p.AppendTo(nil)
		flow := wire.NewFlow(from.Source(1), to.Addr())
		flow.Seal(0, datagram)
		if err := from.Send([]link.Datagram{{Src: from.Source(1), Dst: to.Addr(), Payload: datagram}}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * us)
		if n, err := to.Recv(make([]link.Datagram, 4)); n != 1 || err != nil {
			t.Fatalf("%d packets, %v, want 1", n, err)
		}
	}
	a, b := links[0], links[1]
	tell(0, journal.Event{Kind: journal.KindState, QPN: qpA, Words: "RESET to INIT"}) // without an address yet
	tell(us, journal.Event{Kind: journal.KindReceive, QPN: qpB, Addr: addrB.Addr(), ID: 9, Len: 64, Words: "wr_id 9, 64 bytes"})
	tell(us, journal.Event{Kind: journal.KindSend, QPN: qpA, Addr: addrA.Addr(), ID: 1, Len: 4, Words: "WR_SEND, wr_id 1, 4 bytes"})
	transmit(us, a, b, sendOnly)
	tell(us, journal.Event{Kind: journal.KindReceived, QPN: qpB, Addr: addrB.Addr(), ID: 9, Words: "wr_id 9, WC_RECV, WC_SUCCESS"})
	transmit(us, b, a, answer(1, ack))
	tell(us, journal.Event{Kind: journal.KindDone, QPN: qpA, Addr: addrA.Addr(), ID: 1, Words: "wr_id 1, WC_SEND, WC_SUCCESS"})
	tell(us, journal.Event{Kind: journal.KindDone, QPN: qpA, Addr: addrA.Addr(), ID: 2, Key: 12, Words: "wr_id 2, WC_SEND, WC_RETRY_EXC_ERR"})
	tell(us, journal.Event{Kind: journal.KindState, QPN: 0x999, Words: "RESET to INIT"}) // of a QP without packets
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// What devices have recorded stands between the packets of its end, in the order of time.
func TestEvents(t *testing.T) {
	c := ladder.NewCollector()
	if err := c.Read(bytes.NewReader(recorded(t))); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := c.HTML(&b, "t", ladder.Options{}, ladder.Diagnosis{}); err != nil {
		t.Fatal(err)
	}
	m := head(t, b.String())
	if m["packets"] != 8.0 || m["start"] != -3000.0 {
		t.Errorf("%v packets from %v ns on, want 8 with the events, 3 of which are before the first packet", m["packets"], m["start"])
	}
	var text strings.Builder
	if err := c.Ladder(ladder.Options{}).Text(&text); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text.String(), "wr_id") || !strings.Contains(text.String(), "SEND_ONLY") {
		t.Errorf("the text is\n%s\nwant the packets alone", &text)
	}
}

// A trace has a slice for each packet at both ends, joined by an arrow, and one for each work request. Slices of a
// track do not overlap.
func TestPerfetto(t *testing.T) {
	type event struct {
		Name, Ph, ID, Cat string
		TS, Dur           float64
		PID, TID          int
		Args              map[string]any
	}
	read := func(c *ladder.Collector) (list []event) {
		t.Helper()
		var b bytes.Buffer
		if err := c.Perfetto(&b, ladder.Options{}); err != nil {
			t.Fatal(err)
		}
		var trace struct{ TraceEvents []event }
		if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
			t.Fatal(err)
		}
		return trace.TraceEvents
	}
	count := func(list []event) string {
		n := map[string]int{}
		for _, e := range list {
			n[e.Ph]++
		}
		return fmt.Sprint(n)
	}
	c := ladder.NewCollector()
	if err := c.Read(bytes.NewReader(recorded(t))); err != nil {
		t.Fatal(err)
	}
	list := read(c)
	// Two ends and 5 tracks; two packets at both ends; the payload of one; two work requests; a state, and a completion
	// whose post is not in the capture.
	if got, want := count(list), "map[C:1 M:7 X:4 b:2 e:2 f:2 i:2 s:2]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, e := range list {
		if e.Ph == "X" && (e.Dur <= 0 || e.TS < 3) {
			t.Errorf("%+v, want a slice from 3 µs on", e)
		}
		if e.Ph == "e" && e.Name == "wr_id 1" && e.TS != 10 {
			t.Errorf("the work request ends at %v µs, want 10", e.TS)
		}
	}
	c = ladder.NewCollector()
	if err := c.Read(bytes.NewReader(traffic(5000, 2).b)); err != nil {
		t.Fatal(err)
	}
	ends := map[[2]int]float64{}
	for _, e := range read(c) {
		if e.Ph != "X" {
			continue
		}
		key := [2]int{e.PID, e.TID}
		if e.TS < ends[key]-1e-6 {
			t.Fatalf("%+v begins before %v, where the slice before it ends", e, ends[key])
		}
		ends[key] = e.TS + e.Dur
	}
	if got := read(ladder.NewCollector()); len(got) != 0 {
		t.Errorf("the trace of nothing has %d events", len(got))
	}
}
