package lab

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestCheckTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	good := roceFrame(t, "IPv4")
	// An opcode which promises headers that are not there: a READ request.
	short := slices.Clone(good)
	short[etherHeader+ip4Header+udpHeader] = 0x0c
	var pcap bytes.Buffer
	if err := WritePcap(&pcap, []Frame{{Data: good}, {Data: short}, {Data: good}}); err != nil {
		t.Fatal(err)
	}
	packets, faults, err := CheckTshark(t.Context(), pcap.Bytes())
	if err != nil || packets != 3 || len(faults) != 1 || !strings.HasPrefix(faults[0], "frame 2:") {
		t.Errorf("got %d packets, faults %q, %v; want 3, and frame 2 malformed", packets, faults, err)
	}
}
