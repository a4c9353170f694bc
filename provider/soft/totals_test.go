package soft_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// The totals of the devices of a name only grow: while two of them are open, when one and then the other closes, in
// whatever order its connection manager ends, and when the device is opened again. So do the counters that adverb stat
// shows.
func TestTotals(t *testing.T) {
	for _, c := range []struct{ kind, addr, sent string }{{"soft", "127.0.77.5", "rdma_sends"}, {"iw", "127.0.77.6", "iw_tx_fpdus"}} {
		t.Run(c.kind, func(t *testing.T) {
			if portable && c.kind == "soft" {
				t.Skip("two Opens of one address are built for Linux")
			}
			testTotals(t, c.kind+loopback(t)[len("soft"):]+"@"+c.addr, c.addr, c.sent)
		})
	}
}

func testTotals(t *testing.T, name, addr, sent string) {
	var before verbs.DeviceTotals
	// grown looks at the counters, none of which may have fallen, and returns how much was sent.
	grown := func(when string) uint64 {
		t.Helper()
		now := totals(t, name)
		for _, c := range []struct{ before, now verbs.Counters }{{before.Counters, now.Counters}, {firstOf(before.Ports), firstOf(now.Ports)}} {
			for _, k := range c.before {
				if d, _ := verbs.DescribeCounter(k.Name); !d.Gauge && c.now.Value(k.Name) < k.Value {
					t.Errorf("%s: %s is %d, and was %d, want it to grow", when, k.Name, c.now.Value(k.Name), k.Value)
				}
			}
		}
		before = now
		return now.Counters.Value(sent)
	}
	use := func(times int) (x, y *verbs.Device) {
		t.Helper()
		var opens [2]*verbs.Device
		for i := range opens {
			d, err := verbs.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			opens[i] = d
		}
		l, err := (&rdmacm.ListenConfig{Devices: opens[1:]}).Listen(netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
		if err != nil {
			t.Fatal(err)
		}
		for range times {
			sendOne(t, opens[0], l)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		return opens[0], opens[1]
	}
	x, y := use(3)
	first := grown("two are open")
	if first == 0 {
		t.Fatalf("nothing is counted: %v", before.Counters)
	}
	self := watch.Self(watch.WantStat)
	i := slices.IndexFunc(self.Devices, func(d watch.Device) bool { return d.Name == name })
	if i < 0 || self.Devices[i].Counters[sent] != first {
		t.Errorf("adverb stat shows of %s: %+v, want %d for %s", name, self.Devices, first, sent)
	}
	final, err := x.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if n := grown("one is open"); n != first {
		t.Errorf("%s is %d with one device of two, want %d as before", sent, n, first)
	}
	if cs, err := x.Counters(); err != nil || cs.Value(sent) < final.Value(sent) {
		t.Errorf("the device that is closed has counted %d, %v, want %d", cs.Value(sent), err, final.Value(sent))
	}
	if cs, err := x.PortCounters(1); err != nil || len(cs) == 0 {
		t.Errorf("its port has counted %v, %v, want its counters", cs, err)
	}
	if _, err := x.PortCounters(2); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("port 2 of the device that is closed: %v, want %v", err, verbs.ErrClosed)
	}
	self = watch.Self(watch.WantStat)
	i = slices.IndexFunc(self.Devices, func(d watch.Device) bool { return d.Name == name })
	if i < 0 || self.Devices[i].Counters[sent] != first {
		t.Errorf("adverb stat shows of %s: %+v, want %d for %s", name, self.Devices, first, sent)
	}
	if err := y.Close(); err != nil {
		t.Fatal(err)
	}
	grown("none is open")
	for _, c := range before.Counters {
		if d, _ := verbs.DescribeCounter(c.Name); d.Gauge {
			t.Errorf("%s is %d though no device is open, want no gauge", c.Name, c.Value)
		}
	}
	x, y = use(1)
	if n := grown("both are opened again"); n <= first {
		t.Errorf("%s is %d after more was sent, want more than %d", sent, n, first)
	}
	if err := errors.Join(x.Close(), y.Close()); err != nil {
		t.Fatal(err)
	}
	grown("none is open again")
}

// totals returns the totals of a name.
func totals(t *testing.T, name string) verbs.DeviceTotals {
	t.Helper()
	all := verbs.Totals()
	i := slices.IndexFunc(all, func(d verbs.DeviceTotals) bool { return d.Device == name })
	if i < 0 {
		t.Fatalf("no totals of %s", name)
	}
	return all[i]
}

func firstOf(ports []verbs.Counters) verbs.Counters {
	if len(ports) == 0 {
		return nil
	}
	return ports[0]
}

// sendOne connects, sends a message, and disconnects.
func sendOne(t *testing.T, from *verbs.Device, l *rdmacm.Listener) {
	t.Helper()
	ctx := t.Context()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		if r, err := l.Accept(ctx); err == nil {
			if c, err := r.Accept(ctx, nil); err == nil {
				accepted <- c
			}
		}
	}()
	c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{from}}).Dial(ctx, l.Addr(), &rdmacm.Config{Setup: func(c *rdmacm.Conn) error { return c.QP().PostOneRecv(0) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o, ok := <-accepted
	if !ok {
		t.Fatal("the other end has not accepted")
	}
	defer o.Close()
	if err := o.QP().PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	for _, cq := range []*verbs.CQ{o.SendCQ(), c.RecvCQ()} {
		if _, err := cq.Wait(ctx, make([]verbs.WC, 1)); err != nil {
			t.Fatal(err)
		}
	}
}
