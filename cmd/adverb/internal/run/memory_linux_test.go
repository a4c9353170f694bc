//go:build amd64 || arm64

package run

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// TestDirect: a program of another supervisor writes to mapped memory itself, so that the owner's supervisor has no part in it.
func TestDirect(t *testing.T) {
	needSupervisor(t)
	if !canMap() {
		t.Skip("no memory can be mapped here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	const shm = "ADVERB_SHM=1"                                              // wherever the tests run without
	x, y := startPeer(t, shm), startPeer(t, shm, "GO_ANOTHER_SUPERVISOR=1") // which is in the name that runs share
	meet(x, y)
	x.expect("running")
	y.expect("running")
	program := programOf(t, x.cmd.Process.Pid)
	for ctx.Err() == nil {
		for _, p := range asked(ctx, t, watch.WantStat) {
			if p.PID == program && len(p.Devices) == 1 && p.Devices[0].Counters["shm_direct_ops"] > 100 {
				return
			}
		}
	}
	t.Error("no WRITE was carried out directly")
}

func TestAffords(t *testing.T) {
	var m memory
	if !m.affords() {
		t.Error("the first mapping may not take time")
	}
	m.spend(time.Now().Add(-mostSpent / 2))
	if !m.affords() {
		t.Error("after half of the time no mapping may take more")
	}
	m.spend(time.Now().Add(-mostSpent))
	if m.affords() {
		t.Error("after all of the time a mapping may take more")
	}
	m.begun = m.begun.Add(-10 * mostSpent)
	if !m.affords() {
		t.Error("after ten times as long no mapping may take more")
	}
}
