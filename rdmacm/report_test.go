package rdmacm_test

import (
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// The device of a connection counts the messages that made it, and lists the connection and the port
// that was listened on.
func TestReport(t *testing.T) {
	p := newPair(t)
	x, y := p.connect(t, nil, nil)
	for _, tt := range []struct {
		dev        *verbs.Device
		sent, rcvd []string
	}{
		{p.a, []string{"req", "rtu"}, []string{"rep"}},
		{p.b, []string{"rep"}, []string{"req", "rtu"}},
	} {
		cs, err := tt.dev.Counters()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req"} {
			for dir, want := range map[string][]string{"cm_tx_msgs_": tt.sent, "cm_rx_msgs_": tt.rcvd} {
				n, ok := cs.Get(dir + m)
				if wanted := slices.Contains(want, m); !ok || n != 1 && wanted || n != 0 && !wanted && m != "mra" {
					t.Errorf("%s: %s%s is %d (present: %v), want 1: %v", tt.dev.Name(), dir, m, n, ok, wanted)
				}
			}
		}
		for _, c := range cs {
			if _, ok := verbs.DescribeCounter(c.Name); !ok {
				t.Errorf("counter %s is not described, want it described", c.Name)
			}
		}
		if n := cs.Value("cm_conns"); n != 1 {
			t.Errorf("%s: cm_conns is %d, want 1", tt.dev.Name(), n)
		}
	}
	r, err := p.a.Resources()
	if err != nil {
		t.Fatal(err)
	}
	want := verbs.CMID{QPN: x.QP().QPN(), Type: verbs.QPTypeRC, State: "ESTABLISHED", Local: x.LocalAddr(), Remote: x.RemoteAddr()}
	if len(r.CMID) != 1 || r.CMID[0] != want {
		t.Errorf("IDs %+v of the dialer, want %+v", r.CMID, want)
	}
	if r, err = p.b.Resources(); err != nil {
		t.Fatal(err)
	}
	states := map[string]verbs.CMID{}
	for _, id := range r.CMID {
		states[id.State] = id
	}
	if got := states["ESTABLISHED"]; len(r.CMID) != 2 || got.QPN != y.QP().QPN() || got.Remote != x.LocalAddr() {
		t.Errorf("IDs %+v of the listener, want the connection and the port", r.CMID)
	}
	if got := states["LISTEN"]; got.Local != y.LocalAddr() {
		t.Errorf("listening on %v, want %v", got.Local, y.LocalAddr())
	}
}
