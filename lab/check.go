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
	wrong []string // for each other packet, the packet's fault
}

// add takes a frame of the capture, and reports whether the frame is a RoCE packet with a right ICRC.
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

// Opcodes, and bits of the BTH.
const (
	writeOnly   = 0x0a
	versionBits = 0x0f // of byte 1; there is version 0 only
	reserved4   = 0x3f // of byte 4, next to BECN
	reserved8   = 0x7f // of byte 8, next to AckReq
	routingMark = 0x40 // of reserved8: of WRITEs with adaptive routing
)

// standardOpcodes are first and last ones: of RC, UC and UD, and the congestion notification.
// Manufacturers have those from 0xc0 on. Who does not know an opcode drops the packet in silence.
var standardOpcodes = [][2]byte{{0x00, 0x14}, {0x16, 0x17}, {0x1c, 0x1d}, {0x20, 0x2b}, {0x64, 0x65}, {0x81, 0x81}}

// checkStandard returns an error unless the BTH of a RoCE packet is as the specification has it: an
// opcode of its own, and zeros where it reserves bits. With routed, WRITE ONLYs must have the mark of
// adaptive routing. Damaged packets have byte 4 free: the ICRC leaves byte 4 out.
func checkStandard(frame []byte, routed, damaged bool) error {
	ip, header, err := roceIP(frame)
	if err != nil {
		return err
	}
	bth := ip[header+udpHeader:]
	op := bth[0]
	if !slices.ContainsFunc(standardOpcodes, func(r [2]byte) bool { return r[0] <= op && op <= r[1] }) {
		return fmt.Errorf("opcode 0x%02x is none of the standard's", op)
	}
	if got := bth[1] & versionBits; got != 0 {
		return fmt.Errorf("opcode 0x%02x, version %d of the BTH, want 0", op, got)
	}
	if got := bth[4] & reserved4; got != 0 && !damaged {
		return fmt.Errorf("opcode 0x%02x, reserved bits 0x%02x next to BECN, want none", op, got)
	}
	want := byte(0)
	if routed && op == writeOnly {
		want = routingMark
	}
	if got := bth[8] & reserved8; got != want {
		return fmt.Errorf("opcode 0x%02x, reserved bits 0x%02x next to AckReq, want 0x%02x", op, got, want)
	}
	return nil
}

// firstOf returns the first few faults. If there are more, a last line says how many.
func firstOf(faults []string) []string {
	if more := len(faults) - maxFaults; more > 0 {
		return append(slices.Clone(faults[:maxFaults]), fmt.Sprintf("and %d more", more))
	}
	return faults
}

// noGuesses are options that keep tshark from guessing protocols inside payloads. The payloads
// are the tests' own, and may look like any protocol by chance. The guessing dissectors are those
// that `tshark -G heuristic-decodes` lists for infiniband. The last of them takes a payload for
// Ethernet if the payload begins with an EtherType. This last dissector belongs to a
// protocol that frames need, so only its guessing is disabled.
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
