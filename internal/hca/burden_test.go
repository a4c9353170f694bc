package hca

import (
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// maxGrowth is by how many bytes an attack of some thousand packets may let the heap grow. If each left but a
	// record behind, it would be more.
	maxGrowth = 128 << 10
	// maxCPU is how much CPU time a packet may cost, with what the test does to send it: more than ten times what
	// it does.
	maxCPU = 100 * time.Microsecond
)

// burden is the cost of an attack for the device under attack.
type burden struct {
	t              testing.TB
	dev            *verbs.Device
	held           map[string]int
	heap           uint64
	sent, received uint64
	cpu            time.Duration
}

// burdened begins to measure. Objects that are made once, for the first packet of a kind, should be there.
func burdened(t testing.TB, dev *verbs.Device) *burden {
	t.Helper()
	b := &burden{t: t, dev: dev}
	b.look()
	return b
}

func (b *burden) look() {
	for _, s := range impl(b.dev).Stats() {
		b.sent += s.Link.Sent
		b.received += s.Link.Received
	}
	b.held = tables.Held(impl(b.dev), []string{"internal/transport", "internal/queue", "internal/mem", "internal/idtable"}, nil)
	runtime.GC()
	runtime.GC() // again: pools keep memory for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.heap, b.cpu = m.HeapAlloc, processCPU()
}

// check fails the test if memory or a table has grown since, timers included, if more has been sent than so many
// answers, or if it has cost much time. Nobody may be sending to the device.
func (b *burden) check(answers int) {
	b.t.Helper()
	cpu := processCPU() - b.cpu
	now := burdened(b.t, b.dev)
	packets := now.received - b.received
	if packets < 100 {
		b.t.Errorf("%d packets have come, which is no attack, want 100 at least", packets)
	}
	if now.heap > b.heap+maxGrowth {
		b.t.Errorf("the heap grew from %d to %d bytes, want no more than %d", b.heap, now.heap, maxGrowth)
	}
	for path, n := range now.held {
		if n > b.held[path] {
			b.t.Errorf("%s grew from %d to %d, want it to stay", path, b.held[path], n)
		}
	}
	if sent := now.sent - b.sent; sent > uint64(answers) {
		b.t.Errorf("%d packets were answered by %d, want %d at most", packets, sent, answers)
	}
	if most := time.Duration(packets) * maxCPU; cpu > most && !raceEnabled {
		b.t.Errorf("%d packets cost %v of CPU time, want %v at most", packets, cpu, most)
	}
}
