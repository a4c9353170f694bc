package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The messages of a run of the C programs in read mode, of the client and the server; those of
// one in write mode are in a capture.
var rdmaDemoReadMessages = []string{
	"000000000500000020b325c7e5550000307e25c7e555000070f125c7e5550000000400000000000007000000dc090000dc09000000000000",
	"0000000005000000606fa01c9c5500009049a01c9c550000a07ca01c9c5500000004000000000000070000000c0900000c09000000000000",
	"010000000500000020b325c7e5550000307e25c7e555000070f125c7e5550000000400000000000007000000dc090000dc09000000000000",
	"0100000005000000606fa01c9c5500009049a01c9c550000a07ca01c9c5500000004000000000000070000000c0900000c09000000000000",
}

func TestRDMADemoGolden(t *testing.T) {
	var write []string
	var texts []string
	var operations []verbs.RemoteAddr
	for _, p := range capturedPackets(t, "rdma-write-demo.pcap") {
		switch p.Opcode {
		case wire.RCSendOnly:
			write = append(write, fmt.Sprintf("%x", p.Payload))
		case wire.RCRDMAWriteOnly:
			operations = append(operations, verbs.RemoteAddr{VA: p.RETH.VA, RKey: verbs.RKey(p.RETH.RKey)})
			texts = append(texts, string(cString(p.Payload)))
			if len(p.Payload) != rdmaDemoBufferSize {
				t.Errorf("a WRITE of %d bytes", len(p.Payload))
			}
		}
	}
	if want := []string{"message from active/client side with pid 298", "message from passive/server side with pid 312"}; !slices.Equal(texts, want) {
		t.Errorf("texts %q", texts)
	}
	// What each WRITE goes to is what the other end's MSG_MR says.
	var regions []verbs.RemoteAddr
	for i, text := range append(write, rdmaDemoReadMessages...) {
		b := mustHex(t, text)
		m, err := decodeRDMADemoMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.AppendTo(nil); !bytes.Equal(got, b) {
			t.Errorf("message %x comes out as %x", b, got)
		}
		if want := rdmaDemoMessageType(i / 2 % 2); m.Type != want || m.Length != rdmaDemoBufferSize || m.Handle != 7 || uint32(m.LKey) != uint32(m.RKey) {
			t.Errorf("message %d: %+v", i, m)
		}
		regions = append(regions, verbs.RemoteAddr{VA: m.Addr, RKey: m.RKey})
	}
	if len(write) != 4 || len(operations) != 2 || operations[0] != regions[1] || operations[1] != regions[0] {
		t.Errorf("%d messages; WRITEs to %v, regions %v", len(write), operations, regions)
	}
	if want := (verbs.RemoteAddr{VA: 0x560348eb0ca0, RKey: 0x5d6}); regions[1] != want {
		t.Errorf("the server's region is %v, want %v", regions[1], want)
	}
}

// What is no message of the programs is refused, by a text that says why.
func TestRDMADemoMessageErrors(t *testing.T) {
	good := mustHex(t, rdmaDemoReadMessages[0])
	other := bytes.Clone(good)
	other[0] = 2
	for _, tt := range []struct {
		message []byte
		want    string
	}{
		{nil, "0 bytes"},
		{good[:55], "55 bytes"},
		{append(bytes.Clone(good), 0), "57 bytes"},
		{other, "type 2"},
	} {
		if _, err := decodeRDMADemoMessage(tt.message); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%x: %v", tt.message, err)
		}
	}
	for m, want := range map[rdmaDemoMessageType]string{0: "MSG_MR", 1: "MSG_DONE", 7: "message type 7"} {
		if m.String() != want {
			t.Errorf("type %d is %q", uint32(m), m)
		}
	}
}

func TestRDMADemoFlags(t *testing.T) {
	const modes = "  mode = \"read\", \"write\"\n"
	for _, tt := range []struct {
		argv   string
		stderr string // a prefix
	}{
		{"rdma-server", "usage: rdma-server <mode>\n" + modes},
		{"./rdma-server sing", "usage: ./rdma-server <mode>\n" + modes},
		{"rdma-server -x", "usage: rdma-server <mode>\n" + modes},
		{"rdma-server read 1 2", "usage: rdma-server <mode>\n" + modes},
		{"rdma-server read 65536", "usage: rdma-server <mode> [<port>]\nadverb: port \"65536\": a number up to 65535"},
		{"rdma-client", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client write 127.0.0.1", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client Write 127.0.0.1 1", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client write 127.0.0.1 no-such-service", "error: getaddrinfo(argv[2], argv[3], NULL, &addr) failed (returned non-zero).\nadverb: "},
		{"rdma-client write --ib-dev nope 127.0.0.1 1", "IB device nope not found\n"},
		{"adverb rdma-server --nope", "adverb rdma-server: unrecognized option '--nope'\nusage: adverb rdma-server <mode>\n"},
	} {
		if code, stdout, stderr := tool(t.Context(), strings.Fields(tt.argv)...); code != 1 || stdout != "" || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: status %d\nstdout: %s\nstderr: %s", tt.argv, code, stdout, stderr)
		}
	}
	// The help has all that a learner needs to follow the lines.
	for _, prog := range []string{"rdma-server", "rdma-client"} {
		_, stdout, _ := tool(t.Context(), prog, "--help")
		for _, word := range []string{"send_state", "recv_state", "MSG_MR", "MSG_DONE", "R_Key", "receive must be posted"} {
			if !strings.Contains(stdout, word) {
				t.Errorf("%s --help has no %s:\n%s", prog, word, stdout)
			}
		}
	}
}
