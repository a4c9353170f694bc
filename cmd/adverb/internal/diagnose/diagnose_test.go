package diagnose

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

const captures = "../../../../internal/diagnose/testdata/"

func TestCommand(t *testing.T) {
	tool := tooltest.New(Command)
	good, bad := captures+"rping_ipv6.pcap", captures+"rping-noresp.pcap"
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no capture"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pcap")
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, b[:24], 0o600); err != nil { // the header alone
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args           []string
		code           int
		stdout, stderr string // contained
	}{
		{[]string{good}, 0, "Nothing in this capture speaks of a fault", ""},
		{[]string{bad}, 1, "A connection request was never answered (10.98.0.2 → 10.98.0.1, port 7174).", ""},
		{[]string{bad}, 1, "ERROR CM-NOANSWER (proven)", ""},
		{[]string{"--redact", bad}, 1, "192.0.2.1 → 192.0.2.2", ""},
		{[]string{"--redact", good, bad}, 1, "== capture 2", ""},
		{[]string{"--redact", "--json", bad}, 1, `"file": "capture 1"`, ""},
		{[]string{empty}, 2, "No RoCE packets are in this capture", ""},
		{[]string{"--json", empty}, 2, "No RoCE packets are in this capture", ""},
		{[]string{bad, empty}, 2, "CM-NOANSWER", ""},
		{[]string{good, bad}, 1, "== " + bad, ""},
		{[]string{text}, 2, "", "text: not readable as a capture"},
		{[]string{bad, text, good}, 2, "== " + good, "not readable"},
		{[]string{filepath.Join(captures, "none")}, 2, "", "no such file"},
		{nil, 2, "Usage:", "no file is named"},
	} {
		r := tool.Result(t.Context(), append([]string{"adverb", "diagnose"}, tt.args...)...)
		if r.Code != tt.code || !strings.Contains(r.Stdout, tt.stdout) || !strings.Contains(r.Stderr, tt.stderr) {
			t.Errorf("%q: status %d\n%s%s\nwant status %d, %q and %q", tt.args, r.Code, r.Stdout, r.Stderr, tt.code, tt.stdout, tt.stderr)
		}
		if strings.Contains(strings.Join(tt.args, " "), "--redact") && (strings.Contains(r.Stdout, "10.98") || strings.Contains(r.Stdout, "noresp")) {
			t.Errorf("%q: an address or a name of a file is in the output\n%s", tt.args, r.Stdout)
		}
	}
}

func TestJSON(t *testing.T) {
	r := tooltest.New(Command).Result(t.Context(), "adverb", "diagnose", "--json", captures+"rping-noresp.pcap", captures+"rping_ipv6.pcap")
	var got []struct {
		File, Verdict string
		Findings      []struct {
			ID, Severity, Certainty, Filter string
			Frames                          []int
			Count                           int
			Remedy                          []string
		}
		Clean, Unchecked []string
		RoCE             int `json:"roce_packets"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil || r.Code != 1 || len(got) != 2 {
		t.Fatalf("status %d, %v, %d files: %s", r.Code, err, len(got), r.Stdout)
	}
	if f := got[0].Findings; len(f) != 1 || f[0].ID != "CM-NOANSWER" || f[0].Severity != "error" || f[0].Certainty != "proven" || f[0].Count != 4 || len(f[0].Frames) != 4 || f[0].Filter == "" || len(f[0].Remedy) == 0 {
		t.Errorf("%+v, want CM-NOANSWER of four frames", f)
	}
	if len(got[1].Findings) != 0 || got[1].RoCE == 0 || len(got[1].Clean) == 0 {
		t.Errorf("%+v, want no finding, and what is in order", got[1])
	}
}
