package bench

import (
	"context"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// prepareMemcpy prepares the copies that any path through memory makes at least once: as many bytes in each,
// from as many buffers.
func prepareMemcpy(w *workload) *method {
	if w.kind.isLatency() || w.kind == kindAtomic {
		return nil
	}
	return &method{note: "one thread copies", measure: measureMemcpy}
}

func measureMemcpy(ctx context.Context, c *cell) (benchdata.Cell, error) {
	n := c.w.outstanding
	from, to := make([]byte, n*c.w.size), make([]byte, n*c.w.size)
	for i := range from {
		from[i] = byte(i) // a page that was never written has no memory
	}
	round := func() {
		for i := range n {
			at := i * c.w.size
			copy(to[at:][:c.w.size], from[at:][:c.w.size])
		}
	}
	const rounds = 64 // between looks at the clock
	run := func(d time.Duration) (ops int64, elapsed time.Duration) {
		start := time.Now()
		for ; elapsed < d && ctx.Err() == nil; elapsed = time.Since(start) {
			for range rounds {
				round()
			}
			ops += int64(rounds * n)
		}
		return ops, elapsed
	}
	run(c.warmup())
	ops, elapsed := run(c.time)
	if ctx.Err() != nil {
		return benchdata.Cell{}, ctx.Err()
	}
	return benchdata.Cell{Value: c.w.value(ops, elapsed), Ops: ops, Seconds: elapsed.Seconds(), Counts: &benchdata.Counts{}}, nil
}
