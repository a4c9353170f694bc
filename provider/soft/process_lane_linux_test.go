//go:build !adverb_portable

package soft_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// lanes has this process and those that it starts send packets to each other by shared memory.
func lanes(t *testing.T) { t.Setenv("ADVERB_SHM", "1") }

// TestConformanceLanes runs the suite of package verbstest over shared memory within one process.
func TestConformanceLanes(t *testing.T) {
	lanes(t)
	verbstest.Run(t, suite(loopback(t)+"@"+loopAddr(31), loopback(t)+"@"+loopAddr(32)))
}

// TestConformanceAcrossLanes runs the suite over shared memory between two processes at one address.
func TestConformanceAcrossLanes(t *testing.T) {
	lanes(t)
	device := loopback(t) + "@" + loopAddr(33)
	verbstest.RunAcross(t, suite("", ""), device, device)
}

// Twelve processes lose nothing by shared memory either while others come, are stopped and are killed.
func TestProcessesOneAddressLanes(t *testing.T) {
	lanes(t)
	exchangeAtOneAddress(t)
}

// A peer that is killed, or stopped, is noticed as on a network.
func TestProcessKilledLanes(t *testing.T) {
	lanes(t)
	killWhileStopped(t)
}

// scribble writes random words to random places of all lanes of this process, for ever.
func scribble(seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	var places [][2]uint64
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/maps")))) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x rw-s", &from, &to); err == nil && strings.Contains(line, "memfd:adverb-lane") {
			places = append(places, [2]uint64{from, to})
		}
	}
	memory := must(os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)) // an error, and no fault, where a lane has gone
	var word [8]byte
	for {
		at := places[rnd.IntN(len(places))]
		binary.NativeEndian.PutUint64(word[:], rnd.Uint64()>>rnd.IntN(64))
		off := rnd.Uint64N(at[1] - at[0])
		if rnd.IntN(2) == 0 {
			off %= 512 // where the indexes are, and the first records
		}
		memory.WriteAt(word[:], int64(at[0]+off&^7))
	}
}

// TestScribbler: a member that scribbles over all that it shares harms nobody but itself. Its own connections
// may fail. Those of the others go on, also when it is killed in the midst of it.
func TestScribbler(t *testing.T) {
	lanes(t)
	ms := startTeam(t, loopback(t)+"@"+loopAddr(35), 4, order{Retry: patientRetry, Hostile: 1})
	others := ms[1:]
	ms[0].order(order{Scribble: 1 + newRand(t).Uint64()>>1})
	for _, p := range others {
		p.order(order{Await: &progress{Number: 1, RC: 500}})
	}
	for _, p := range others {
		p.await("exchanging messages with others", func(r *report) bool { return r.Reached == 1 })
	}
	ms[0].kill()
	sum := others.finish()
	for _, p := range others {
		for _, f := range p.failed {
			if f.Peer != 0 {
				t.Errorf("%s: failures %v, want none but that of peer 0", p.name, p.failed)
			}
		}
	}
	t.Logf("%+v", sum)
}

// dialSelf connects two devices, and returns the QP of the end that dials. The other one answers nothing, so
// it sends acknowledgements alone.
func dialSelf(t *testing.T, at string) *verbs.QP {
	t.Helper()
	server, err := verbs.Open(loopback(t) + "@" + at)
	if err != nil {
		t.Fatal(err)
	}
	return dialServer(t, server, at)
}

// dialServer is dialSelf for a device that listens and is open already.
func dialServer(t *testing.T, server *verbs.Device, at string) *verbs.QP {
	t.Helper()
	client, err := verbs.Open(loopback(t) + "@" + at)
	if err != nil {
		t.Fatal(err)
	}
	return dialBetween(t, client, server, at)
}

// dialBetween is dialServer from a device that is open too.
func dialBetween(t *testing.T, client, server *verbs.Device, at string) *verbs.QP {
	t.Helper()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{server}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(at), 0))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		r, err := l.Accept(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		c, err := r.Accept(t.Context(), &rdmacm.Config{KeepAlive: -1})
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- c
	}()
	c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{client}}).Dial(t.Context(), l.Addr(), &rdmacm.Config{KeepAlive: -1})
	if err != nil {
		t.Fatal(err)
	}
	other, ok := <-accepted // a test that is over by then would cancel it
	if !ok {
		t.FailNow()
	}
	t.Cleanup(func() {
		for _, e := range []interface{ Close() error }{c, other, l, client, server} {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return c.QP()
}

// envCaptured makes the test run whose process captures the packets of its first device.
const envCaptured = "ADVERB_TEST_CAPTURED"

// TestCapturedPeer: a program whose packets are captured takes none by shared memory, so that all are seen.
func TestCapturedPeer(t *testing.T) {
	runTestInside(t, "TestCapturedPeerInside", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envCaptured+"=1") })
}

func TestCapturedPeerInside(t *testing.T) {
	if os.Getenv(envCaptured) == "" {
		t.Skip("TestCapturedPeer runs this one")
	}
	lanes(t)
	t.Setenv("ADVERB_PCAP", filepath.Join(t.TempDir(), "server.pcap"))
	server, err := verbs.Open(loopback(t) + "@" + loopAddr(34))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ADVERB_PCAP", "")
	if got := dialServer(t, server, loopAddr(34)).Carrier(); got != verbs.CarrierUDP {
		t.Errorf("the carrier to a program whose packets are captured is %q, want %q", got, verbs.CarrierUDP)
	}
}

// TestWhichWay: a QP's counters tell which way its packets go, and all of them go one way.
func TestWhichWay(t *testing.T) {
	for _, near := range []bool{true, false} {
		t.Run(fmt.Sprintf("shm %v", near), func(t *testing.T) {
			t.Setenv("ADVERB_SHM", map[bool]string{true: "1", false: "0"}[near])
			qp := dialSelf(t, loopAddr(34))
			for limit := time.Now().Add(patience); near && qp.Carrier() == verbs.CarrierUDP && time.Now().Before(limit); {
				qp = dialSelf(t, loopAddr(34)) // the process has stood still for so long that no lane was made
			}
			if got, want := qp.Carrier(), map[bool]string{true: verbs.CarrierSHM, false: verbs.CarrierUDP}[near]; got != want {
				t.Errorf("the carrier is %q, want %q", got, want)
			}
			const count = 10
			for range count {
				if _, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}}); err != nil {
					t.Fatal(err)
				}
				var wcs [1]verbs.WC
				if _, err := qp.SendCQ().Wait(t.Context(), wcs[:]); err != nil || wcs[0].Status != verbs.WCSuccess {
					t.Fatal(err, wcs[0])
				}
			}
			c, err := qp.Counters()
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"sent_pkts", "rcvd_pkts"} {
				all, by := c.Value(name), c.Value("shm_"+name)
				if all < count || near && by != all || !near && by != 0 {
					t.Errorf("%s %d, of which %d by shared memory; want %d at least, and by shared memory all of them or none: %v",
						name, all, by, count, near)
				}
			}
		})
	}
}
