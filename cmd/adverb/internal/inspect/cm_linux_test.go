package inspect

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// connected connects a device to itself by the connection manager, and sends a message that has come.
func connected(t *testing.T, device string) (x, y *rdmacm.Conn) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dev, err := verbs.Open(device)
	ok(err)
	t.Cleanup(func() { ok(dev.Close()) })
	_, addr, _ := strings.Cut(device, "@")
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
	ok(err)
	t.Cleanup(func() { ok(l.Close()) })
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			y, err = r.Accept(t.Context(), &rdmacm.Config{Setup: func(c *rdmacm.Conn) error {
				mr, err := c.AllocMR(64, verbs.AccessLocalWrite)
				if err != nil {
					return err
				}
				_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}})
				return err
			}})
		}
		accepted <- err
	}()
	x, err = (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(t.Context(), l.Addr(), nil)
	ok(err)
	t.Cleanup(func() { x.Close() })
	ok(<-accepted)
	t.Cleanup(func() { y.Close() })
	_, err = x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled}})
	ok(err)
	for _, cq := range []*verbs.CQ{x.SendCQ(), y.RecvCQ()} {
		var wcs [1]verbs.WC
		_, err = cq.Wait(t.Context(), wcs[:])
		ok(err)
		ok(wcs[0].Err())
	}
	return x, y
}

// cmDevices are one of each kind, which no other program of the host has open under these names.
var cmDevices = []string{"soft_lo@127.30.7.2", "iw_lo@127.30.7.3"}

// A port that is listened on and the two ends of a connection have a row each, for RoCE and for iWARP.
func TestResCMID(t *testing.T) {
	for _, device := range cmDevices {
		x, y := connected(t, device)
		var want []string
		for _, c := range []*rdmacm.Conn{x, y} {
			want = append(want, fmt.Sprintf("0x%06x RC ESTABLISHED %v %v", uint32(c.QP().QPN()), c.LocalAddr(), c.RemoteAddr()))
		}
		want = append(want, fmt.Sprintf("- - LISTEN %v -", y.LocalAddr()))
		_, out, _ := tool.Run(t.Context(), "adverb", "res", "cm_id", device)
		var got []string
		_, rows := lines(t, out)
		for _, r := range rows {
			got = append(got, strings.Join(r[3:], " "))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: res cm_id prints\n%swant lines with %q", device, out, want)
		}
	}
}

// Programs get the same as JSON.
func TestResJSON(t *testing.T) {
	for _, device := range cmDevices {
		x, y := connected(t, device)
		_, out, _ := tool.Run(t.Context(), "adverb", "res", "--json", device)
		var all []watch.Process
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		if len(all) != 1 || all[0].PID != os.Getpid() || len(all[0].Devices) != 1 || all[0].Devices[0].Name != device {
			t.Fatalf("res --json prints\n%swant this process with %s", out, device)
		}
		d := &all[0].Devices[0]
		want := watch.CMID{QPN: uint32(x.QP().QPN()), Type: "RC", State: "ESTABLISHED", Local: x.LocalAddr().String(), Remote: x.RemoteAddr().String()}
		if d.Count["cm_id"] != 3 || len(d.CMID) != 3 || !slices.ContainsFunc(d.CMID, func(id watch.CMID) bool {
			return short(id.Type) == want.Type && id.QPN == want.QPN && id.State == want.State && id.Local == want.Local && id.Remote == want.Remote
		}) {
			t.Errorf("%s: IDs %+v (%d), want three, with %+v", device, d.CMID, d.Count["cm_id"], want)
		}
		if d.Count["mr"] != len(d.MR) || len(d.PD) != d.Count["pd"] || len(d.CQ) != d.Count["cq"] ||
			!slices.ContainsFunc(d.QP, func(q watch.QP) bool { return q.QPN == uint32(y.QP().QPN()) && short(q.State) == "RTS" }) {
			t.Errorf("%s: res --json prints\n%swant as many objects as it counts, with the QPs of the connection", device, out)
		}
	}
}

// An iWARP device counts its packets, as one of RoCE does.
func TestStatTraffic(t *testing.T) {
	for _, device := range cmDevices {
		connected(t, device)
		_, out, _ := tool.Run(t.Context(), "adverb", "stat", device)
		head, rows := lines(t, out)
		if len(rows) != 1 || head[4] != "SENT" || rows[0][4] == "0" || head[6] != "RCVD" || rows[0][6] == "0" {
			t.Errorf("stat prints\n%swant packets sent and received", out)
		}
		_, out, _ = tool.Run(t.Context(), "adverb", "stat", "-v", device)
		for _, want := range []string{"port_xmit_packets", "packets sent", "cm_listeners", "cm_conns"} {
			if !strings.Contains(out, want) {
				t.Errorf("stat -v prints\n%swant %s", out, want)
			}
		}
	}
}
