package demo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A second opinion on the demo's packets: tshark shares no code with this project.
func TestDemoDecodesInTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	name := filepath.Join(t.TempDir(), "demo.pcapng")
	if code, _, stderr := tool.Run(t.Context(), "adverb", "demo", "--pcap", name); code != 0 {
		t.Fatalf("demo: got exit status %d, want 0: %s", code, stderr)
	}
	fields := exec.Command(tshark, "-r", name, "-T", "fields", "-E", "occurrence=f",
		"-e", "infiniband.bth.opcode", "-e", "_ws.malformed", "-e", "infiniband.bth.psn")
	out, err := fields.Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) < 24 { // two runs of 6 requests and 6 responses at least
		t.Errorf("tshark read %d packets, want at least 24", len(lines))
	}
	for i, line := range lines {
		f := strings.Split(line, "\t")
		if len(f) != 3 || f[0] == "" || f[1] != "" || f[2] == "" {
			t.Errorf("packet %d: got opcode, malformed mark and PSN %q, want an opcode, no mark and a PSN", i+1, f)
		}
	}
}
