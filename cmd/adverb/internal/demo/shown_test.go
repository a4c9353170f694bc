package demo

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// ADVERB_TRACE shows the packets of both devices, each line with its device, and by one clock: none is received before it
// was sent. ADVERB_PCAP has a capture beside it.
func TestDemoShown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	t.Setenv("ADVERB_TRACE", "1")
	t.Setenv("ADVERB_PCAP", file)
	r := <-tooltest.StartProcess(t.Context(), t, "adverb", "demo", "-q", "write").Done
	if r.Code != 0 {
		t.Fatalf("got status %d, stderr %s, want status 0", r.Code, r.Stderr)
	}
	line := regexp.MustCompile(`^(\d+\.\d{6}) soft_\w+@([0-9.]+) (send|recv) ([0-9.]+):\d+ > ([0-9.]+):4791 .*psn=0x`)
	sent := map[string]float64{}
	received := 0
	for text := range strings.Lines(r.Stderr) {
		m := line.FindStringSubmatch(text)
		if m == nil {
			continue
		}
		at, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		_, packet, _ := strings.Cut(text, " "+m[3]+" ")
		if own := map[string]string{"send": m[4], "recv": m[5]}[m[3]]; own != m[2] {
			t.Errorf("got the device %s, want that of %s: %s", m[2], own, text)
		}
		if m[3] == "send" {
			sent[packet] = at
			continue
		}
		received++
		if before, ok := sent[packet]; !ok || before > at {
			t.Errorf("received at %f, sent at %f (%v), want it sent before: %s", at, before, ok, text)
		}
	}
	if received < 5 {
		t.Errorf("got %d packets that were received, want those of a connection:\n%s", received, r.Stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Size() < 1000 {
		t.Errorf("the capture: %v, %v, want one", info, err)
	}
}
