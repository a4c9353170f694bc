package rdmatest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// envReplay makes this test binary be the program whose bytes are compared.
const envReplay = "ADVERB_TEST_REPLAY"

// TestReplayProgram exchanges messages over a network that loses and damages packets. Only one packet is under
// way at a time, so nothing depends on which end is faster. It is run by
// TestReplay, by itself.
func TestReplayProgram(t *testing.T) {
	if os.Getenv(envReplay) == "" {
		t.Skip("TestReplay runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Loss: 0.1, Corrupt: 0.1})
		a, b := net.Device(), net.Device()
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(64), y.MR(64)
		for i := range 50 {
			src.Bytes()[0] = byte(i)
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
			x.Done()
			synctest.Wait()
			x.Send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
			x.Done()
			synctest.Wait()
		}
	})
}

// replay runs TestReplayProgram and returns its capture.
func replay(t *testing.T, seed uint64, env ...string) (capture []byte, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	c := exec.Command(os.Args[0], "-test.run=^TestReplayProgram$")
	var err strings.Builder
	c.Stderr = &err
	c.Env = append(os.Environ(), envReplay+"=1", "ADVERB_PCAP="+file, fmt.Sprintf("ADVERB_SEED=%d", seed))
	c.Env = append(c.Env, env...)
	if out, err := c.Output(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, rerr := os.ReadFile(file)
	if rerr != nil {
		t.Fatal(rerr)
	}
	return b, err.String()
}

// With the same seed a test sends the same bytes at the same times: its capture is the same file. With
// another seed it is not.
func TestReplay(t *testing.T) {
	const seed = 20
	first, _ := replay(t, seed)
	if len(first) < 10_000 {
		t.Fatalf("the capture has %d bytes, want some 200 packets", len(first))
	}
	for range 3 {
		if again, _ := replay(t, seed); !bytes.Equal(again, first) {
			t.Fatalf("seed %d: two runs have different captures, of %d and %d bytes", seed, len(first), len(again))
		}
	}
	if other, _ := replay(t, seed+1); bytes.Equal(other, first) {
		t.Errorf("seeds %d and %d have the same capture", seed, seed+1)
	}
}

// ADVERB_TRACE shows the packets of simulated devices.
func TestTrace(t *testing.T) {
	_, trace := replay(t, 1, "ADVERB_TRACE=1")
	if !strings.Contains(trace, " send 10.0.0.1:") || !strings.Contains(trace, "RDMA_WRITE_ONLY") {
		t.Errorf("the trace is\n%.1000s\nwant lines with packets", trace)
	}
}
