package rwdemo

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The messages of the client and the server in a run of the C programs in read mode. Those of a run
// in write mode are in a capture.
var readModeMessages = []string{
	"000000000500000020b325c7e5550000307e25c7e555000070f125c7e5550000000400000000000007000000dc090000dc09000000000000",
	"0000000005000000606fa01c9c5500009049a01c9c550000a07ca01c9c5500000004000000000000070000000c0900000c09000000000000",
	"010000000500000020b325c7e5550000307e25c7e555000070f125c7e5550000000400000000000007000000dc090000dc09000000000000",
	"0100000005000000606fa01c9c5500009049a01c9c550000a07ca01c9c5500000004000000000000070000000c0900000c09000000000000",
}

func TestRDMADemoGolden(t *testing.T) {
	var write []string
	var texts []string
	var operations []verbs.RemoteAddr
	for _, p := range tooltest.CapturedPackets(t, "rdma-write-demo.pcap") {
		switch p.Opcode {
		case wire.RCSendOnly:
			write = append(write, fmt.Sprintf("%x", p.Payload))
		case wire.RCRDMAWriteOnly:
			operations = append(operations, verbs.RemoteAddr{VA: p.RETH.VA, RKey: verbs.RKey(p.RETH.RKey)})
			texts = append(texts, string(clib.String(p.Payload)))
			if len(p.Payload) != BufferSize {
				t.Errorf("got a WRITE of %d bytes, want %d", len(p.Payload), BufferSize)
			}
		}
	}
	if want := []string{"message from active/client side with pid 298", "message from passive/server side with pid 312"}; !slices.Equal(texts, want) {
		t.Errorf("got texts %q, want %q", texts, want)
	}
	// Each WRITE goes to the region that the other end's MSG_MR describes.
	var regions []verbs.RemoteAddr
	for i, text := range append(write, readModeMessages...) {
		b := tooltest.MustHex(t, text)
		m, err := DecodeMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.AppendTo(nil); !bytes.Equal(got, b) {
			t.Errorf("got message %x back, want %x", got, b)
		}
		if want := MessageType(i / 2 % 2); m.Type != want || m.Length != BufferSize || m.Handle != 7 || uint32(m.LKey) != uint32(m.RKey) {
			t.Errorf("message %d: got %+v, want type %v, length %d, handle 7 and equal keys", i, m, want, BufferSize)
		}
		regions = append(regions, verbs.RemoteAddr{VA: m.Addr, RKey: m.RKey})
	}
	if len(write) != 4 || len(operations) != 2 || operations[0] != regions[1] || operations[1] != regions[0] {
		t.Errorf("got %d messages and WRITEs to %v, want 4, and WRITEs to the regions %v crosswise", len(write), operations, regions)
	}
	if want := (verbs.RemoteAddr{VA: 0x560348eb0ca0, RKey: 0x5d6}); regions[1] != want {
		t.Errorf("the server's region is %v, want %v", regions[1], want)
	}
}

// A message that is none of the programs' is refused, and the error says why.
func TestRDMADemoMessageErrors(t *testing.T) {
	good := tooltest.MustHex(t, readModeMessages[0])
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
		if _, err := DecodeMessage(tt.message); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%x: got %v, want an error with %q", tt.message, err, tt.want)
		}
	}
	for m, want := range map[MessageType]string{0: "MSG_MR", 1: "MSG_DONE", 7: "message type 7"} {
		if m.String() != want {
			t.Errorf("type %d: got %q, want %q", uint32(m), m, want)
		}
	}
}

// The text of a message in the demonstration.
func TestMessageString(t *testing.T) {
	// The MSG_MR that a C rdma-client sent, and the region that its peer then used.
	m, err := DecodeMessage(tooltest.MustHex(t, "000000000500000020b395d647560000307e95d64756000070f195d647560000000400000000000007000000580500005805000000000000"))
	if want := (verbs.RemoteAddr{VA: 0x5647d695f170, RKey: 0x558}); err != nil || m.Remote() != want {
		t.Errorf("got region %v, error %v; want %v", m.Remote(), err, want)
	}
	const want = "MSG_MR {addr 0x5647d695f170, length 1024, rkey 0x00000558}"
	if got := m.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	m.Type = MsgDone
	if got, want := m.String(), "MSG_DONE"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzDecodeMessage(f *testing.F) {
	f.Add(new(Message).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		again, err := DecodeMessage(m.AppendTo(nil))
		if err != nil || again != m {
			t.Errorf("%x: got %+v, %v back, want %+v", b, again, err, m)
		}
	})
}
