package devinfo

import (
	"context"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

// The devices that verify has, on addresses that no other test has.
const (
	verifiedDevice = "soft_lo@127.0.88.41"
	peerDevice     = "soft_lo@127.0.88.42"
)

// TestVerify: a run names the host and the device, and how each case has ended.
func TestVerify(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	r := tool.Result(ctx, "adverb", "verify", verifiedDevice, "--run", "^(rc/send|mr/)")
	if r.Code != 0 {
		t.Fatalf("status %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, want := range []string{"adverb  ", "hca_id:\t" + verifiedDevice, "GID[", "pass  rc/send", " passed, 0 failed, 0 skipped\n"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("stdout lacks %q:\n%s", want, r.Stdout)
		}
	}
}

// TestVerifyAcross: the other side is at a peer, and the JSON of the report names neither host.
func TestVerifyAcross(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	peer := tool.Start(ctx, "adverb", "verify", "--serve", peerDevice, "--port", port)
	var r tooltest.Result
	for {
		r = tool.Result(ctx, "adverb", "verify", verifiedDevice, "127.0.88.42", "--port", port, "--run", "^(rc/send|cm/)", "--skip", "^(rc/send.|cm/[^c])", "--json", "--redact")
		if !strings.Contains(r.Stderr, "refused") || ctx.Err() != nil { // yet
			break
		}
	}
	if p := <-peer.Done; p.Code != 0 || r.Code != 0 {
		t.Fatalf("status %d, and %d of the peer:\n%s%s%s%s", r.Code, p.Code, r.Stdout, r.Stderr, p.Stdout, p.Stderr)
	}
	var out struct {
		Host struct {
			Adverb string `json:"adverb"`
		} `json:"host"`
		Device struct {
			Device string `json:"name"`
		} `json:"device"`
		Peer   string     `json:"peer"`
		Cases  []caseJSON `json:"cases"`
		Passed int        `json:"passed"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%v: %s", err, r.Stdout)
	}
	want := []caseJSON{{Case: "rc/send", Outcome: "pass"}, {Case: "cm/connection", Outcome: "pass"}}
	if !slices.Equal(out.Cases, want) || out.Passed != 2 || out.Peer != "another host" || out.Device.Device != "soft_lo" || out.Host.Adverb == "" {
		t.Errorf("got %+v, want %v of soft_lo, with another host", out, want)
	}
	if strings.Contains(r.Stdout, "127.0.88") {
		t.Errorf("addresses are in a report that is to have none:\n%s", r.Stdout)
	}
}

// TestVerifyArguments: a run that is not possible says why.
func TestVerifyArguments(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "Usage"},
		{"--serve " + verifiedDevice + " 127.0.0.1", 2, "Usage"},
		{verifiedDevice + " --run (", 1, "missing closing"},
		{verifiedDevice + " --run ( --skip x", 1, "missing closing"},
		{"no_such_device", statusNoDevice, "wasn't found"},
		{verifiedDevice + " 127.0.88.42 --port " + tooltest.FreePort(t), 1, "verify --serve"},
	} {
		if r := tool.Result(ctx, append([]string{"adverb", "verify"}, strings.Fields(c.args)...)...); r.Code != c.code || !strings.Contains(r.Stdout+r.Stderr, c.says) {
			t.Errorf("%q: status %d, %q, want %d and %q", c.args, r.Code, r.Stdout+r.Stderr, c.code, c.says)
		}
	}
}

// TestReport: the report names the host's software, and with --redact no address.
func TestReport(t *testing.T) {
	r := tool.Result(t.Context(), "adverb", "devinfo", "-v", "--report", "-d", verifiedDevice)
	if r.Code != 0 || !strings.HasPrefix(r.Stdout, "adverb ") || !strings.Contains(r.Stdout, "127.0.88.41") {
		t.Errorf("status %d, %q", r.Code, r.Stdout)
	}
	r = tool.Result(t.Context(), "adverb", "devinfo", "--report", "--redact", "--json", "-d", verifiedDevice)
	var out hostJSON
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil || len(out.Devices) != 1 || out.Host.Platform == "" {
		t.Errorf("%v: %s", err, r.Stdout)
	}
	if strings.Contains(r.Stdout, "127.0.88") || regexp.MustCompile(`[0-9a-f]{4}:[0-9a-f]{4}:fe`).MatchString(r.Stdout) {
		t.Errorf("an address is in a report that is to have none:\n%s", r.Stdout)
	}
}

// TestRedact: addresses that were the same have the same number, and others have others.
func TestRedact(t *testing.T) {
	gid := func(s string) verbs.GID { return verbs.GIDFromAddr(netip.MustParseAddr(s)) }
	guid := verbs.GUID{1, 2, 3, 4, 5, 6, 7, 8}
	r := report{info: verbs.DeviceInfo{Name: "mlx5_0", NodeGUID: guid}, attr: verbs.DeviceAttr{NodeGUID: guid, SysImageGUID: verbs.GUID{8}},
		ports: []portinfo{{gids: []verbs.GIDEntry{{GID: gid("10.1.2.3")}, {GID: gid("fe80::1234")}, {GID: gid("fd01::5")}, {GID: gid("10.1.2.3")}, {}}}}}
	pairs := r.redact()
	if r.info.NodeGUID != r.attr.NodeGUID || r.attr.NodeGUID == r.attr.SysImageGUID || r.attr.NodeGUID == guid || r.info.Name != "mlx5_0" {
		t.Errorf("GUIDs %v, %v, %v of %s", r.info.NodeGUID, r.attr.NodeGUID, r.attr.SysImageGUID, r.info.Name)
	}
	var got []string
	for _, g := range r.ports[0].gids {
		got = append(got, g.GID.Addr().String())
	}
	if want := []string{"0.0.0.3", "fe80::4", "2001:db8::5", "0.0.0.3", "::"}; !slices.Equal(got, want) {
		t.Errorf("GIDs %v, want %v", got, want)
	}
	if text := strings.NewReplacer(pairs...).Replace("no way to 10.1.2.3, fd01::5"); text != "no way to 0.0.0.3, 2001:db8::5" {
		t.Errorf("a text: %q", text)
	}
}
