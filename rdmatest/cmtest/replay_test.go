package cmtest_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rdmatest/cmtest"
)

// envReplay makes this test binary be the program whose bytes are compared.
const envReplay = "ADVERB_TEST_REPLAY_CM"

// TestReplayProgram makes connections over a network that loses packets, and ends them, one at a time.
// TestReplay runs it, by itself.
func TestReplayProgram(t *testing.T) {
	if os.Getenv(envReplay) == "" {
		t.Skip("TestReplay runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Loss: 0.2})
		a, b := net.Device(), net.Device()
		for range 10 {
			x, y := cmtest.Dial(t, a, b, nil, nil)
			synctest.Wait()
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			<-y.Disconnected()
			synctest.Wait()
			if err := y.Close(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	})
}

// replay runs TestReplayProgram and returns its capture, without the records of the devices: those name addresses of memory,
// which differ from process to process.
func replay(t *testing.T, seed uint64) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	c := exec.Command(os.Args[0], "-test.run=^TestReplayProgram$")
	c.Env = append(os.Environ(), envReplay+"=1", "ADVERB_PCAP="+file, fmt.Sprintf("ADVERB_SEED=%d", seed))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, out)
	}
	capture, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return packetsOf(t, capture)
}

// packetsOf returns the blocks of a capture (pcapng) that are not for local use.
func packetsOf(t *testing.T, capture []byte) (rest []byte) {
	t.Helper()
	const localUse = 1 << 31 // of a block's type
	for len(capture) > 0 {
		if len(capture) < 8 {
			t.Fatal("the capture ends inside a block")
		}
		n := binary.LittleEndian.Uint32(capture[4:])
		if n < 12 || uint64(n) > uint64(len(capture)) {
			t.Fatalf("a block of %d bytes, and %d are left", n, len(capture))
		}
		if binary.LittleEndian.Uint32(capture)&localUse == 0 {
			rest = append(rest, capture[:n]...)
		}
		capture = capture[n:]
	}
	return rest
}

// With the same seed the connection manager sends the same bytes at the same times, repetitions of what
// was lost included. With another seed it does not.
func TestReplay(t *testing.T) {
	const seed = 7
	first := replay(t, seed)
	if len(first) < 10_000 {
		t.Fatalf("the capture has %d bytes, want those of ten connections", len(first))
	}
	for range 3 {
		if again := replay(t, seed); !bytes.Equal(again, first) {
			t.Fatalf("seed %d: two runs have different captures, of %d and %d bytes", seed, len(first), len(again))
		}
	}
	if other := replay(t, seed+1); bytes.Equal(other, first) {
		t.Errorf("seeds %d and %d have the same capture", seed, seed+1)
	}
}
