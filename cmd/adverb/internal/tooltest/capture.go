package tooltest

import (
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// CapturedPackets returns the packets that two Linux kernels sent for C programs. Each starts
// with its BTH, since over IPv4 the headers before it have 42 bytes.
func CapturedPackets(t *testing.T, name string) (all []wire.Packet) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "..", "internal", "wire", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return all
		}
		var p wire.Packet
		if err == nil {
			err = p.Decode(frame[42:])
		}
		if err != nil {
			t.Fatalf("%s: packet %d: %v", name, len(all)+1, err)
		}
		all = append(all, p)
	}
}

// MustHex decodes hexadecimal digits.
func MustHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
