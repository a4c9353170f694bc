//go:build amd64 || arm64

package run

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// meet lets two programs write to each other.
func meet(x, y *running) {
	a, b := x.contact(), y.contact()
	x.tell(b)
	y.tell(a)
	x.expect("connected")
	y.expect("connected")
	x.tell("go")
	y.tell("go")
}

// asked returns the answers of the programs of this test binary.
func asked(ctx context.Context, t *testing.T, want watch.Want) (all []watch.Process) {
	t.Helper()
	answers, _, err := watch.Ask(ctx, want) // other programs of this host may be silent
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range answers {
		if p.Command == filepath.Base(os.Args[0]) {
			all = append(all, p)
		}
	}
	return all
}

// TestOwner: adverb stat and adverb res show a program under adverb run by its own name and process ID.
func TestOwner(t *testing.T) {
	needSupervisor(t)
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	x, y := startPeer(t), startPeer(t)
	meet(x, y)
	x.expect("running")
	y.expect("running")
	programs := []int{programOf(t, x.cmd.Process.Pid), programOf(t, y.cmd.Process.Pid)}
	for _, want := range []watch.Want{watch.WantRes, watch.WantStat} {
		var found []int
		for _, p := range asked(ctx, t, want) {
			if !slices.Contains(programs, p.PID) {
				continue
			}
			found = append(found, p.PID)
			if len(p.Devices) != 1 || p.Devices[0].Name != "soft_lo" || p.Devices[0].Count["qp"] != 1 {
				t.Errorf("%s: devices %+v, want soft_lo with a QP", want, p.Devices)
			}
			if want == watch.WantStat && p.Devices[0].Counters["rdma_write_requests"]+p.Devices[0].Counters["rcvd_pkts"] == 0 {
				t.Errorf("%s: counters %v, want some", want, p.Devices[0].Counters)
			}
		}
		slices.Sort(programs)
		if !slices.Equal(found, programs) {
			t.Errorf("%s: processes %v answer, want %v", want, found, programs)
		}
	}
	answers, _, err := watch.Ask(ctx, watch.WantRes)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range answers {
		for _, of := range programs {
			if slices.Contains(ancestors(of), p.PID) {
				t.Errorf("process %d, %s, answers: want the program in its place", p.PID, p.Command)
			}
		}
	}
}

// TestShownPackets: what the variables of the environment ask of devices holds for those of a program under adverb run.
func TestShownPackets(t *testing.T) {
	needSupervisor(t)
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	capture := filepath.Join(t.TempDir(), "packets.pcapng")
	x := startPeer(t, "ADVERB_SHM=0", "ADVERB_TRACE=1", "ADVERB_PCAP="+capture)
	y := startPeer(t, "ADVERB_SHM=0")
	meet(x, y)
	x.expect("running")
	y.cmd.Process.Kill()
	x.expect("ended")
	x.line()
	x.quit(ctx)
	if !strings.Contains(x.stderr.String(), "RDMA_WRITE") {
		t.Errorf("ADVERB_TRACE=1: stderr has no WRITE: %.500q", x.stderr.String())
	}
	if f, err := os.Stat(capture); err != nil || f.Size() < peerMessage {
		t.Errorf("ADVERB_PCAP: %+v, %v, want a capture with a WRITE at least", f, err)
	}
}
