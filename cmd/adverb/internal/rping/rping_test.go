package rping

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The C program's messages in two rounds: adverts and go-aheads by SEND, and the data in the answer to a READ and in
// a WRITE.
func TestRpingGolden(t *testing.T) {
	var messages []string
	var adverts, data int
	for _, p := range tooltest.CapturedPackets(t, "rping.pcap") {
		switch p.Opcode {
		case wire.RCSendOnly:
			a := decodeAdvert(p.Payload)
			if got := a.AppendTo(nil); !bytes.Equal(got, p.Payload) {
				t.Errorf("got advert %x back, want %x", got, p.Payload)
			}
			messages = append(messages, hex.EncodeToString(p.Payload))
			adverts++
		case wire.RCRDMAReadResponseOnly, wire.RCRDMAWriteOnly:
			want := make([]byte, defaultSize)
			fillData(want, data/2)
			if !bytes.Equal(p.Payload, want) {
				t.Errorf("data %q, captured %q, want the same", want, p.Payload)
			}
			data++
		}
	}
	if adverts != 8 || data != 4 {
		t.Errorf("%d adverts and %d times data, want 8 and 4", adverts, data)
	}
	goAhead := strings.Repeat("00", advertSize)
	want := []string{"00005618609153700000119b00000040", goAhead, "0000561860915550000010bd00000040", goAhead}
	if got := messages[:4]; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got messages %v, want %v", got, want)
	}
	if a := decodeAdvert(tooltest.MustHex(t, messages[0])); a.Remote.VA != 0x561860915370 || a.Remote.RKey != 0x119b || a.Size != 64 {
		t.Errorf("got advert %+v, want address 0x561860915370, key 0x119b and size 64", a)
	}
}

// FuzzDecodeAdvert: a decoded message is encoded as it came, and nothing behind it counts.
func FuzzDecodeAdvert(f *testing.F) {
	f.Add(advert{Remote: verbs.RemoteAddr{VA: 0x561860915370, RKey: 0x119b}, Size: 64}.AppendTo(nil))
	f.Add(make([]byte, advertSize+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < advertSize {
			return // its callers know the size
		}
		a := decodeAdvert(b)
		if got := a.AppendTo(nil); !bytes.Equal(got, b[:advertSize]) || decodeAdvert(got) != a {
			t.Errorf("%x is decoded as %+v, which is encoded as %x, want the same bytes", b, a, got)
		}
	})
}

// A round's data fills all of the buffer, and the last byte is NUL.
func TestFillRping(t *testing.T) {
	for _, tt := range []struct {
		size, round int
		want        string
	}{
		{23, 0, "rdma-ping-0: ABCDEFGHI"},
		{24, 57, "rdma-ping-57: zABCDEFGH"},
		{24, 58, "rdma-ping-58: ABCDEFGHI"},
		{23, 2147483647, "rdma-ping-2147483647: "},
		{74, 56, "rdma-ping-56: yz" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwx" + "y"},
	} {
		buf := bytes.Repeat([]byte{0xff}, tt.size)
		fillData(buf, tt.round)
		if got := string(clib.String(buf)); got != tt.want || bytes.Contains(buf, []byte{0xff}) {
			t.Errorf("%d bytes, round %d: %q, want %q", tt.size, tt.round, got, tt.want)
		}
	}
}

func TestRpingFlags(t *testing.T) {
	usage := strings.ReplaceAll(classicUsage, "PROG", "rping")
	const size = " (valid range is 23 to 65536)\n"
	tooltest.ListenPeer(t.Context(), t, serverDevice, serverAddr, testPort) // the device answers that nobody listens on port 1
	for _, tt := range []struct {
		argv           string
		code           int
		stdout, stderr string // a prefix of stderr
	}{
		{"rping", 22, usage, ""},
		{"/usr/bin/rping -v", 22, usage, ""},
		{"rping -s -x", 22, usage, ""},
		{"rping -t 3 -s", 22, usage, ""},
		{"rping -h", 22, usage, ""},
		{"rping -s -S", 22, usage, ""},
		{"rping -s -p 65537", 22, usage, "adverb: read --port=65537: that is too large: give one from 0 to 65535\n"},
		{"rping -c -C x", 22, usage, "adverb: read --count=x: that is no number: "},
		{"rping -c -S 22", 22, "", "Invalid size 22" + size},
		{"rping -c -S 65536", 22, "", "Invalid size 65536" + size},
		{"rping -c -S -5", 22, "", "Invalid size -5" + size},
		{"rping -cS x -C-1", 22, "", "Invalid size 0" + size + "Invalid count -1\n"},
		{"rping -dc -p 1 -S 23 -C 5 -vV -S 1", 22, "client\nport 1\nsize 23\ncount 5\nverbose\nvalidate data\n", "Invalid size 1" + size},
		{"rping -c -d -C -2 operand -s", 22, "server\n", "Invalid count -2\n"},
		{"rping -c -a host.invalid", 254, "getaddrinfo failed (Name or service not known) - invalid hostname or IP address\n", "adverb: lookup host.invalid"},
		{"adverb rping -x", 22, strings.ReplaceAll(classicUsage, "PROG", "adverb rping"), ""},
		{"rping -s --ib-dev nope", 19, "", "IB device nope not found\n"},
		{"rping -s --ib-dev " + clientDevice + " -a 192.0.2.200", 255, "",
			"rdma_bind_addr: No such device\nadverb: bind 192.0.2.200:7174: no RDMA device has the address"},
		{"rping -c --ib-dev " + clientDevice + " -a 127.0.0.1 -I 192.0.2.200", 255, "",
			"cma event RDMA_CM_EVENT_ADDR_ERROR, error -19\nwaiting for addr/route resolution state 1\nadverb: resolve address 192.0.2.200:0->127.0.0.1:7174: no RDMA device has"},
		{"rping -c --ib-dev " + clientDevice + " -a " + serverAddr + " -p 1", 255, "",
			"cma event RDMA_CM_EVENT_REJECTED, error 8\nwait for CONNECTED state 4\nadverb: connect "},
	} {
		if strings.Contains(tt.argv, ".invalid") && testing.Short() {
			continue // asks a name server
		}
		code, stdout, stderr := tool.Run(t.Context(), strings.Fields(tt.argv)...)
		if code != tt.code || stdout != tt.stdout || !strings.HasPrefix(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: status %d, want %d\nstdout: %s\nstderr: %s", tt.argv, code, tt.code, stdout, stderr)
		}
	}
}
