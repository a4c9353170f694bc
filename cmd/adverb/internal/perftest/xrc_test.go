package perftest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The order of the exchange is that of the C programs. Both ways an end names its initiators and then its targets, and
// each is connected to the peer's QP of the other half. One way the QPs of a lane are of the same place.
func TestXRCEnds(t *testing.T) {
	for _, tt := range []struct {
		kind  *kind
		flags string
		want  string
	}{
		{kindOf(SendBW), "-q 2", "local 1, local 2"},
		{kindOf(SendBW), "-q 2 -b", "local 1, local 2, target 1, target 2"},
		{kindOf(ReadLat), "", "local 1, target 1"},
	} {
		p := &params{qpType: verbs.QPTypeXRCSend, qps: strings.Count(tt.flags, "2") + 1, bidi: strings.Contains(tt.flags, "-b")}
		ts := &tester{params: p, kind: tt.kind, lanes: make([]lane, p.qps)}
		var got []string
		list := ts.ends()
		for i, e := range list {
			e.remote.qpn = verbs.QPN(i)
			for j := range ts.lanes {
				switch l := &ts.lanes[j]; e.local {
				case &l.local:
					got = append(got, fmt.Sprint("local ", j+1))
				case &l.targetLocal:
					got = append(got, fmt.Sprint("target ", j+1))
				}
			}
		}
		if s := strings.Join(got, ", "); s != tt.want || len(list) != ts.numQP() {
			t.Errorf("%s %s: got the order %s of %d QPs, want %s", tt.kind.name, tt.flags, s, ts.numQP(), tt.want)
		}
		for i := range ts.lanes {
			remote, target := verbs.QPN(i), verbs.QPN(0)
			if ts.xrcBothWays() {
				remote, target = verbs.QPN(len(ts.lanes)+i), verbs.QPN(i)
			}
			if l := &ts.lanes[i]; l.remote.qpn != remote || l.targetRemote.qpn != target {
				t.Errorf("%s %s: QP %d is connected to the peer's %v, its target to %v; want places %v and %v",
					tt.kind.name, tt.flags, i, l.remote.qpn, l.targetRemote.qpn, remote, target)
			}
		}
	}
}

// A device without XRC is named before the peer is called.
func TestXRCLacking(t *testing.T) {
	r := tool.Result(t.Context(), "ib_write_lat", "-c", "XRC", "-d", "iw_lo@127.0.88.75", "127.0.0.1")
	const want = " Couldn't create XRC resources\nadverb: iw_lo@127.0.88.75 has no XRC (device_cap_flags)"
	if r.Code != 1 || !strings.HasPrefix(r.Stderr, want) {
		t.Errorf("got status %d, stderr %q, want status 1 and %q", r.Code, r.Stderr, want)
	}
}

// Ends of RC and XRC have different numbers of QPs both ways: they say so.
func TestXRCMismatch(t *testing.T) {
	server, client := runPair(t, "ib_send_lat", "-n 20 -c XRC", "-n 20")
	if all := server.Stderr + client.Stderr; server.Code != 1 || client.Code != 1 || !strings.Contains(all, errOtherQP.Error()) {
		t.Errorf("got status %d and %d, stderr:\n%s\nwant status 1 of both, and %q", server.Code, client.Code, all, errOtherQP)
	}
	for flags, want := range map[string]string{"-c XRC -R": "XRC does not support RDMA_CM", "-c XRC --psk " + tooltest.PSK(t, "x"): "--psk: the connection manager"} {
		r := tool.Result(t.Context(), strings.Fields("ib_send_bw "+flags)...)
		if r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: got status %d, stderr %q, want %q", flags, r.Code, r.Stderr, want)
		}
	}
}
