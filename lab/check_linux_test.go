package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// needTshark skips a test where there is no tshark.
func needTshark(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
}

func TestCheckTshark(t *testing.T) {
	needTshark(t)
	good := roceFrame(t, "IPv4")
	// The opcode of a READ request promises headers that are not there.
	short := slices.Clone(good)
	short[etherHeader+ip4Header+udpHeader] = 0x0c
	other := slices.Clone(good)
	other[etherHeader+ip4Header+2] ^= 1 // another UDP port
	frames := []Frame{{Data: good}, {Data: short}, {Data: good}, {Data: other}}
	// These payloads look like those of other protocols. The short ones look like RPC over RDMA.
	// Others begin with the EtherTypes of IPv4, ARP and IPv6.
	for _, start := range []string{"{", "\x08\x00", "\x08\x00\x00\x00\x45\x00", "\x08\x06", "\x08\x06\x00\x00\x00\x01", "\x86\xdd", "\x86\xdd\x00\x00\x60\x00"} {
		for _, length := range []int{4, 16, 48, 1024} {
			payload := make([]byte, length)
			copy(payload, start)
			frames = append(frames, Frame{Data: sendFrame(good, payload)})
		}
	}
	var pcap bytes.Buffer
	if err := WritePcap(&pcap, frames); err != nil {
		t.Fatal(err)
	}
	numbers := make([]int, len(frames))
	for i := range numbers {
		numbers[i] = 100 + i
	}
	faults, err := CheckTshark(t.Context(), pcap.Bytes(), numbers)
	if err != nil || len(faults) != 2 || !strings.HasPrefix(faults[0], "frame 101: tshark finds it malformed: ") || faults[1] != "frame 103: tshark finds no BTH" {
		t.Errorf("got faults %q, %v; want frame 101 malformed and 103 without BTH", faults, err)
	}
	for _, n := range []int{len(numbers) - 1, len(numbers) + 1} {
		if _, err := CheckTshark(t.Context(), pcap.Bytes(), make([]int, n)); err == nil {
			t.Errorf("%d packets with %d numbers: got no error, want one", len(numbers), n)
		}
	}
}

// sendFrame returns an RC SEND ONLY with the addresses of another packet.
func sendFrame(like, payload []byte) []byte {
	const sendOnly = 4
	f := slices.Clone(like[:etherHeader+ip4Header+udpHeader+bthLength])
	f = append(append(f, payload...), make([]byte, icrcLength)...)
	ip := f[etherHeader:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[ip4Header+4:], uint16(len(ip)-ip4Header))
	ip[ip4Header+udpHeader] = sendOnly
	reseal(f)
	return f
}

// reseal gives an IPv4 frame the right ICRC.
func reseal(frame []byte) {
	ip := frame[etherHeader:]
	binary.LittleEndian.PutUint32(ip[len(ip)-icrcLength:], icrcOf(ip[:len(ip)-icrcLength], ip4Header))
}

func TestPackets(t *testing.T) {
	good := roceFrame(t, "IPv4")
	bad := slices.Clone(good)
	bad[len(bad)-1] ^= 1
	var p packets
	for i, tt := range []struct {
		frame []byte
		right bool
	}{{good, true}, {bad, false}, {good[:40], false}, {sendFrame(good, []byte("four")), true}, {bad, false}} {
		if got := p.add(i+1, tt.frame); got != tt.right {
			t.Errorf("frame %d: got right %v, want %v", i+1, got, tt.right)
		}
	}
	if p.right != 2 || p.count() != 4 || len(p.wrong) != 2 || !strings.HasPrefix(p.wrong[1], "frame 5: ICRC") {
		t.Errorf("got %+v, want 2 right packets of 4, and 2 wrong ones of which the second is frame 5", p)
	}
	many := make([]string, maxFaults+3)
	if got := firstOf(many); len(got) != maxFaults+1 || got[maxFaults] != "and 3 more" {
		t.Errorf("got %q, want %d faults, and 3 more", got, maxFaults)
	}
	if got := firstOf(many[:maxFaults]); len(got) != maxFaults {
		t.Errorf("got %q, want %d faults", got, maxFaults)
	}
}

// A fault in packets between two kernels fails no scenario, but is shown.
func TestForeignPackets(t *testing.T) {
	needTshark(t)
	before := len(results.notShown)
	defer func() { results.notShown = results.notShown[:before] }()
	good := roceFrame(t, "IPv4")
	bad := slices.Clone(good)
	bad[len(bad)-1] ^= 1
	malformed := sendFrame(good, nil)
	malformed[etherHeader+ip4Header+udpHeader] = 0x0c // a READ request, without its headers
	reseal(malformed)
	foreign := scenario{mtu: 1500, foreign: true}
	for _, tt := range []struct {
		frames []Frame
		err    error
		want   []string
	}{
		{[]Frame{{Data: good}, {Data: bad}, {Data: malformed}}, errors.New("the capture has lost packets"),
			[]string{"lost packets", "frame 2: ICRC", "frame 3: tshark", "no RoCE packet went to the guest"}},
		{[]Frame{{Data: sendFrame(good, make([]byte, 1500))}}, nil, []string{"nobody has cut"}},
	} {
		passed := t.Run("foreign", func(t *testing.T) {
			c := &Capture{done: make(chan struct{}), frames: tt.frames, err: tt.err}
			close(c.done)
			foreign.checkCapture(t, c)
		})
		var report bytes.Buffer
		results.report(&report)
		for _, want := range tt.want {
			if !passed || !strings.Contains(report.String(), want) {
				t.Errorf("the scenario has passed %v, and the report is %q; want that it passes, and %q in the report", passed, &report, want)
			}
		}
	}
}

// Packets from us to a kernel follow the standard, but for the mark of adaptive routing and for
// damage.
func TestStandardPackets(t *testing.T) {
	needTshark(t)
	good := sendFrame(roceFrame(t, "IPv4"), []byte("four"))
	changed := func(at int, bits byte) []byte {
		f := slices.Clone(good)
		f[etherHeader+ip4Header+udpHeader+at] ^= bits
		reseal(f)
		return f
	}
	write := func(reserved byte) []byte {
		f := sendFrame(good, make([]byte, 16)) // an RETH
		bth := f[etherHeader+ip4Header+udpHeader:]
		bth[0], bth[8] = 0x0a, reserved
		reseal(f)
		return f
	}
	const sendOnly, hello, unknown = 0x04, 0xe0, 0x15
	kernel := scenario{family: "Verbs", mtu: 1500}
	routed, damaged := kernel, kernel
	routed.check.routed = true
	damaged.check.badICRCs = func() (least, most int) { return 0, 1 }
	foreign, ours := kernel, kernel
	foreign.foreign, ours.family = true, ownGuestFamily
	for _, tt := range []struct {
		name     string
		scenario scenario
		frame    []byte
		want     string // in the fault; none if empty
	}{
		{"a SEND", kernel, good, ""},
		{"a solicited event and MigReq", kernel, changed(1, 0xc0), ""},
		{"BECN", kernel, changed(4, 0x40), ""},
		{"AckReq", kernel, changed(8, 0x80), ""},
		{"a hello", kernel, changed(0, sendOnly^hello), "frame 2: opcode 0xe0"},
		{"an opcode that nobody has", kernel, changed(0, sendOnly^unknown), "opcode 0x15"},
		{"another version", kernel, changed(1, 0x08), "version 8"},
		{"a bit next to BECN", kernel, changed(4, 0x01), "0x01 next to BECN"},
		{"a bit next to BECN, by damage", damaged, changed(4, 0x01), ""},
		{"a hello beside damage", damaged, changed(0, sendOnly^hello), "opcode 0xe0"},
		{"a bit next to AckReq", kernel, changed(8, 0x01), "0x01 next to AckReq"},
		{"a mark that nobody has asked for", kernel, write(0x40), "0x40 next to AckReq"},
		{"a mark", routed, write(0x40), ""},
		{"no mark where there should be one", routed, write(0), "0x00 next to AckReq, want 0x40"},
		{"a SEND with the mark", routed, changed(8, 0x40), "0x40 next to AckReq, want 0x00"},
		{"a hello between two kernels", foreign, changed(0, sendOnly^hello), ""},
		{"a hello between two of ours", ours, changed(0, sendOnly^hello), ""},
	} {
		frames := []Frame{{Data: changed(0, sendOnly^hello)}, {ToGuest: true, Data: tt.frame}}
		got := tt.scenario.strangePackets(frames, []int{1, 2})
		if tt.want == "" && got != nil || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
			t.Errorf("%s: got %q, want one fault if the following is not empty, and that in it: %q", tt.name, got, tt.want)
		}
	}
	var faults []string
	kernel.checkPackets(t, []Frame{{Data: good}, {ToGuest: true, Data: changed(0, sendOnly^hello)}}, func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf(format, args...))
	})
	if len(faults) != 1 || !strings.Contains(faults[0], "1 packets to the kernel") {
		t.Errorf("a scenario with a hello to the kernel: got %q, want this one fault", faults)
	}
}

// Users type the pattern. The pattern reaches the test through make and two shells.
func TestRunPattern(t *testing.T) {
	const name = "TestVerbsStorm/RC_storm/MTU=1500/the_kernel's_packets_lost,_repeated_($x)+ü"
	got := runPattern(name)
	if want := "TestVerbsStorm/RC_storm/MTU=1500/the_kernel.s_packets_lost,_repeated_..x..."; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !regexp.MustCompile("^" + got + "$").MatchString(name) {
		t.Errorf("the pattern %s does not match %s, want a match", got, name)
	}
}

// TestCountRepeats: a packet that comes again counts, but for a lone packet of ours after some
// silence.
func TestCountRepeats(t *testing.T) {
	send := sendFrame(roceFrame(t, "IPv4"), []byte("four"))
	at := func(ms int, toGuest bool) Frame {
		return Frame{Time: time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond), ToGuest: toGuest, Data: send}
	}
	for _, tt := range []struct {
		name     string
		frames   []Frame
		to, from int
	}{
		{"once each way", []Frame{at(0, true), at(1, false)}, 0, 0},
		{"a probe of ours", []Frame{at(0, true), at(10, true)}, 0, 0},
		{"a probe, and more behind it", []Frame{at(0, true), at(10, true), at(11, true)}, 1, 0},
		{"at once", []Frame{at(0, true), at(1, true)}, 1, 0},
		{"by the guest", []Frame{at(0, false), at(100, false)}, 0, 1},
	} {
		if to, from, naks := countRepeats(t, tt.frames); to != tt.to || from != tt.from || naks != 0 {
			t.Errorf("%s: got %d, %d and %d NAKs; want %d, %d and none", tt.name, to, from, naks, tt.to, tt.from)
		}
	}
}
