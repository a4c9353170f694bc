package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

const maxFaults = 5 // a message lists so many, and counts the others

// packets are the RoCE packets of a capture that went in one direction.
type packets struct {
	right int      // the number of packets with a right ICRC
	wrong []string // for each other packet, what is wrong with it
}

// add takes a frame of the capture. It reports whether the frame is a RoCE packet with a right ICRC.
func (p *packets) add(number int, frame []byte) bool {
	switch err := checkICRC(frame); {
	case errors.Is(err, errNotRoCE):
		return false
	case err != nil:
		p.wrong = append(p.wrong, fmt.Sprintf("frame %d: %v", number, err))
		return false
	}
	p.right++
	return true
}

func (p *packets) count() int { return p.right + len(p.wrong) }

// firstOf returns the first few faults. If there are more, a last line says how many.
func firstOf(faults []string) []string {
	if more := len(faults) - maxFaults; more > 0 {
		return append(slices.Clone(faults[:maxFaults]), fmt.Sprintf("and %d more", more))
	}
	return faults
}

// noGuesses are tshark's options that keep it from guessing protocols inside payloads. The payloads
// are the tests' own, and may look like any protocol by chance. The guessing dissectors are those
// that `tshark -G heuristic-decodes` lists for infiniband. The last of them takes a payload for
// Ethernet if the payload begins with an EtherType. It belongs to a protocol that frames need, so
// only its guessing is disabled.
var noGuesses = []string{
	"--disable-protocol", "fcoib",
	"--disable-protocol", "infiniband.eoib",
	"--disable-protocol", "infiniband_sdp",
	"--disable-protocol", "iser",
	"--disable-protocol", "lnet",
	"--disable-protocol", "nvme-rdma",
	"--disable-protocol", "rpcordma",
	"--disable-protocol", "smb_direct",
	"--disable-protocol", "smc",
	"--disable-heuristic", "eth_over_ib",
}

// CheckTshark has tshark decode RoCE packets. It returns a fault for each packet in which tshark
// finds no BTH or something malformed. The numbers are those of the frames in the whole capture;
// faults name them.
func CheckTshark(ctx context.Context, pcap []byte, numbers []int) (faults []string, err error) {
	args := append([]string{"-r", "-", "-n", "-T", "fields", "-E", "occurrence=f", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed"}, noGuesses...)
	cmd := exec.CommandContext(ctx, "tshark", args...)
	cmd.Stdin = bytes.NewReader(pcap)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tshark: %w: %s", err, stderr.Bytes())
	}
	lines := 0
	for line := range strings.Lines(string(out)) {
		opcode, malformed, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case !ok || lines >= len(numbers):
			return nil, fmt.Errorf("tshark: printed %q behind %d lines, want two fields for each of %d packets", line, lines, len(numbers))
		case malformed != "":
			faults = append(faults, fmt.Sprintf("frame %d: tshark finds it malformed: %s", numbers[lines], malformed))
		case opcode == "":
			faults = append(faults, fmt.Sprintf("frame %d: tshark finds no BTH", numbers[lines]))
		}
		lines++
	}
	if lines != len(numbers) {
		return nil, fmt.Errorf("tshark: printed %d lines for %d packets", lines, len(numbers))
	}
	return faults, nil
}
