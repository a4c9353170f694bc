package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// prepareMemcpy prepares the copies that any path through memory makes at least once: as many bytes in each,
// from as many buffers. Where a message goes to and fro, that is a copy by each end, which the other end waits for.
func prepareMemcpy(w *workload) *method {
	switch w.kind {
	case kindPolled, kindWatched:
		if !hasTwoCores(allowedCPUs()) {
			return &method{missing: "the process may use one core only"}
		}
		return &method{note: "two threads copy, and wait for each other", measure: measureBounce}
	case kindBlocked, kindAtomic, kindList:
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
	return measureRounds(ctx, c, n, round)
}

// measureRounds measures rounds of n operations each.
func measureRounds(ctx context.Context, c *cell, n int, round func()) (benchdata.Cell, error) {
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

// measureBounce has two threads copy a message to and fro, each on a core of its own.
func measureBounce(ctx context.Context, c *cell) (got benchdata.Cell, err error) {
	x, y := make([]byte, c.w.size), make([]byte, c.w.size)
	var there, back line
	var ended atomic.Bool
	onTwoCores(c.cpus, func() {
		n := uint32(0)
		got, err = measureRounds(ctx, c, 1, func() {
			n++
			copy(y, x)
			there.n.Store(n)
			for back.n.Load() != n {
			}
		})
		ended.Store(true)
	}, func() {
		for n := uint32(1); ; n++ {
			for there.n.Load() != n {
				if ended.Load() {
					return
				}
			}
			copy(x, y)
			back.n.Store(n)
		}
	})
	return got, err
}
