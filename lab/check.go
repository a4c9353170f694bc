package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

const maxFaults = 5 // that are spelt out

// CheckICRCs returns what is wrong with the RoCE packets among frames, and how many there are each way.
func CheckICRCs(frames [][]byte) (packets int, faults []string) {
	bad := 0
	for i, f := range frames {
		err := checkICRC(f)
		if errors.Is(err, errNotRoCE) {
			continue
		}
		packets++
		if err != nil {
			if bad++; bad <= maxFaults {
				faults = append(faults, fmt.Sprintf("frame %d: %v", i+1, err))
			}
		}
	}
	if bad > maxFaults {
		faults = append(faults, fmt.Sprintf("and %d more bad ICRCs", bad-maxFaults))
	}
	return packets, faults
}

// CheckTshark has tshark decode a capture. It returns in how many packets tshark found a BTH, and those that
// it found malformed.
func CheckTshark(ctx context.Context, pcap []byte) (packets int, faults []string, err error) {
	// An ICMP error quotes the packet that nobody wanted: after the end of a program, say.
	// Payloads are not decoded: they are the tests' own, and look like any protocol by chance.
	cmd := exec.CommandContext(ctx, "tshark", "-r", "-", "-n", "-Y", "!icmp && !icmpv6", "-T", "fields", "-E", "occurrence=f",
		"--disable-protocol", "iser", "--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct",
		"-e", "frame.number", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed")
	cmd.Stdin = bytes.NewReader(pcap)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, nil, fmt.Errorf("tshark: %w: %s", err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			return 0, nil, fmt.Errorf("tshark: printed %q, want three fields", line)
		}
		if f[1] != "" {
			packets++
		}
		// A payload that begins as an EtherType does is taken for what that says, and ip cannot be disabled. The
		// frame's own IP header is the ICRC's business.
		if f[2] == "[Malformed Packet: IPv4]" {
			continue
		}
		if f[2] != "" && len(faults) < maxFaults {
			faults = append(faults, fmt.Sprintf("frame %s: tshark finds it malformed: %s", f[0], f[2]))
		}
	}
	return packets, faults, nil
}
