package rnic

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// counts returns counters that are not 0, and fails the test for one that is not described.
func counts(t *testing.T, cs verbs.Counters, err error) map[string]uint64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]uint64{}
	for _, c := range cs {
		if _, ok := verbs.DescribeCounter(c.Name); !ok {
			t.Errorf("counter %s is not described, want it described", c.Name)
		}
		if c.Value != 0 {
			m[c.Name] = c.Value
		}
	}
	return m
}

// TestCounters checks the counters of a QP, and that its device adds them up, also once the QP is closed.
func TestCounters(t *testing.T) {
	x, y := pair(t)
	const n = 1 << 17
	src, dst := x.mr(n), y.mr(n)
	x.write(src, dst)
	// The empty message of the initiator, three segments of data, a READ request and its answer.
	sent := map[string]uint64{"iw_tx_fpdus": 5, "iw_rx_fpdus": 1, "iw_tx_bytes": n}
	rcvd := map[string]uint64{"iw_rx_fpdus": 5, "iw_tx_fpdus": 1, "iw_rx_bytes": n}
	for _, e := range []struct {
		*end
		want map[string]uint64
	}{{x, sent}, {y, rcvd}} {
		cs, err := e.qp.Counters()
		if got := counts(t, cs, err); !maps.Equal(got, e.want) {
			t.Errorf("the QP counts %v, want %v", got, e.want)
		}
	}
	second, peer := newEnd(t, x.prov), newEnd(t, y.prov)
	second.connect(peer)
	second.write(second.mr(64), peer.mr(64))
	for range 2 {
		cs, err := x.dev.Counters()
		if got, want := counts(t, cs, err), (map[string]uint64{"iw_tx_fpdus": 8, "iw_rx_fpdus": 2, "iw_tx_bytes": n + 64}); !maps.Equal(got, want) {
			t.Errorf("the device counts %v, want %v", got, want)
		}
		x.must(x.qp.Close()) // the second time round its counts are still there
	}
	cs, err := x.dev.PortCounters(1)
	port := counts(t, cs, err)
	// Each segment has a length, a header of 14 bytes and a CRC's place; a READ request has 28 bytes more.
	if data := port["port_xmit_data"] * 4; port["port_xmit_packets"] != 8 || port["port_rcv_packets"] != 2 || data < n+64 || data > n+64+8*64 {
		t.Errorf("the port counts %v, want 8 packets of %d bytes and headers, and 2 received", port, n+64)
	}
	cs, err = y.dev.PortCounters(1)
	if got := counts(t, cs, err)["port_rcv_data"]; got != port["port_xmit_data"] {
		t.Errorf("the peer's port has received %d units, and this one has sent %d, want as many", got, port["port_xmit_data"])
	}
}

// TestCountersOfFaults has a peer break the rules, and the port go down.
func TestCountersOfFaults(t *testing.T) {
	e, peer := half(t)
	if _, err := peer.Write(fpdu(&iwarp.Header{Tagged: true, Last: true, Op: iwarp.Write, STag: 0x123400, TO: 64}, []byte("data"))); err != nil {
		t.Fatal(err)
	}
	rest(t, peer)
	e.prov.Netdev.(*sim.Netdev).SetUp(false)
	ev := e.event()
	for ev.Type != verbs.EventPortErr {
		ev = e.event()
	}
	if ev.Cause == nil || ev.Cause.Error() != "network interface sim is down" {
		t.Errorf("%v for %v, want the interface and what has happened to it", ev.Type, ev.Cause)
	}
	cs, err := e.dev.Counters()
	if got := counts(t, cs, err); got["iw_tx_terminates"] != 1 || got["link_downed"] != 1 {
		t.Errorf("the device counts %v, want a Terminate, and the port down once", got)
	}
	cs, err = e.dev.PortCounters(1)
	if got := counts(t, cs, err); got["link_downed"] != 1 {
		t.Errorf("the port counts %v, want that it was down once", got)
	}
}

// TestCountersOfCRC has a peer send a wrong CRC. The device counts it, and still does when the QP is closed.
func TestCountersOfCRC(t *testing.T) {
	offer := deep
	offer.CRC = true
	e := newEnd(t, newDevice(t))
	peer, b := tcpPair(t)
	defer peer.Close()
	_, terms := agree(t, offer, deep, nil)
	e.attach(b, terms)
	if _, err := peer.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Send, MSN: 1}, nil)); err != nil {
		t.Fatal(err)
	}
	rest(t, peer)
	for range 2 {
		cs, err := e.dev.Counters()
		device := counts(t, cs, err)["iw_rx_crc_errors"]
		cs, err = e.dev.PortCounters(1)
		if port := counts(t, cs, err)["port_rcv_errors"]; device != 1 || port != 1 {
			t.Errorf("a wrong CRC: the device counts %d and the port %d, want 1 and 1", device, port)
		}
		e.must(e.qp.Close()) // the second time round its count is still there
	}
}

// lines is a logger's handler that hands records on as text.
func lines(d *end) chan string {
	got := make(chan string, 100)
	h := slog.NewTextHandler(writer(got), &slog.HandlerOptions{Level: slog.LevelDebug})
	d.must(d.dev.SetLogger(slog.New(h)))
	return got
}

type writer chan string

func (w writer) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// logged waits for a line with all of some texts.
func logged(t *testing.T, got chan string, want ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var seen []string
	for {
		select {
		case line := <-got:
			seen = append(seen, line)
			all := true
			for _, w := range want {
				all = all && strings.Contains(line, w)
			}
			if all {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no line of the log has %q; there are\n%s", want, strings.Join(seen, ""))
		}
	}
}

// TestLogger has the log of a connection: it is made, it ends in order, it is lost, it is terminated from
// either side.
func TestLogger(t *testing.T) {
	x, y := ends(t)
	got := lines(x)
	x.connect(y)
	logged(t, got, "level=DEBUG", `msg="connection made"`, "device=iw_sim", "qp="+x.qp.QPN().String(), "local=127.0.0.1:", "remote=127.0.0.1:")
	x.write(x.mr(8), y.mr(8))
	x.prov.Shutdown(x.qp.QPN())
	y.prov.Shutdown(y.qp.QPN())
	logged(t, got, "level=DEBUG", `msg="connection ended"`)

	lost, peer := half(t)
	got = lines(lost)
	lost.must(peer.SetLinger(0))
	peer.Close()
	logged(t, got, "level=WARN", `msg="connection ended"`, "cause=")
	logged(t, got, "level=WARN", `msg="QP failed"`, "from=QPS_RTS", "the TCP connection is lost")
	logged(t, got, "level=WARN", `msg="asynchronous event"`, "event=EVENT_QP_FATAL")

	lost, peer = half(t)
	got = lines(lost)
	if _, err := peer.Write(fpdu(&iwarp.Header{Tagged: true, Last: true, Op: iwarp.Write, STag: 0x123400, TO: 64}, []byte("data"))); err != nil {
		t.Fatal(err)
	}
	logged(t, got, "level=WARN", `msg="TERMINATE sent"`, "0x001234", "the peer is told: invalid STag")
	peer.Close()
	logged(t, got, "level=WARN", `msg="connection ended"`, "0x001234")

	told, peer := half(t)
	got = lines(told)
	m := iwarp.TermMsg{Code: 0x0101}
	if _, err := peer.Write(fpdu(&iwarp.Header{Last: true, Op: iwarp.Terminate, QN: 2, MSN: 1}, m.AppendTo(nil))); err != nil {
		t.Fatal(err)
	}
	logged(t, got, "level=WARN", `msg="TERMINATE received"`, "the peer has terminated the connection: base or bounds violation")
	peer.Close()
}
