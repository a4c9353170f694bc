package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// prepareMemcpy prepares the copies that any path through memory makes at least once, from and to as many bytes as
// ours walks: those of a region at either end. Where a message goes to and fro, that is a copy by each end, which the
// other end waits for.
func prepareMemcpy(threads int) func(w *workload) *method {
	return func(w *workload) *method {
		switch {
		case w.kind == kindBlocked || w.kind == kindAtomic:
			return nil
		case w.kind.isLatency() && threads == 1:
			return nil
		case threads > 1 && !hasTwoCores(allowedCPUs()):
			return &method{missing: "the process may use one core only"}
		case w.kind.isLatency():
			return &method{note: "they copy, and wait for each other", measure: measureBounce}
		case threads > 1:
			return &method{note: "each copies its half", measure: measureTwoMemcpys}
		}
		return &method{measure: measureMemcpy}
	}
}

// A copier copies messages, or the part of each that is its own, from one region to another.
type copier struct {
	from, to []byte
	step     int          // bytes of a copy
	copied   atomic.Int64 // bytes
	_        [cacheLineAndOne]byte
}

// newCopiers divides a workload's regions among threads, each of which has other messages, or another part of the
// one message.
func newCopiers(w *workload, threads int) []copier {
	n := w.region()
	from, to := make([]byte, n), make([]byte, n)
	for i := range from {
		from[i], to[i] = byte(i), 1 // a page that was never written has no memory
	}
	list, part := make([]copier, threads), n/threads
	for i := range list {
		list[i].from, list[i].to, list[i].step = from[i*part:][:part], to[i*part:][:part], min(w.size, part)
	}
	return list
}

// round copies all messages, or parts, once.
func (k *copier) round() {
	for at := 0; at < len(k.from); at += k.step {
		copy(k.to[at:][:k.step], k.from[at:][:k.step])
	}
	k.copied.Add(int64(len(k.from)))
}

func measureMemcpy(ctx context.Context, c *cell) (benchdata.Cell, error) {
	k := &newCopiers(c.w, 1)[0]
	return measureRounds(ctx, c, k.round, func() int64 { return k.copied.Load() / int64(c.w.size) })
}

// measureTwoMemcpys has two threads copy at once, each on a core of its own.
func measureTwoMemcpys(ctx context.Context, c *cell) (got benchdata.Cell, err error) {
	ks := newCopiers(c.w, 2)
	var ended atomic.Bool
	onTwoCores(c.cpus, func() {
		got, err = measureRounds(ctx, c, ks[0].round, func() int64 { return (ks[0].copied.Load() + ks[1].copied.Load()) / int64(c.w.size) })
		ended.Store(true)
	}, func() {
		for !ended.Load() {
			ks[1].round()
		}
	})
	return got, err
}

// measureRounds measures rounds. done counts the operations.
func measureRounds(ctx context.Context, c *cell, round func(), done func() int64) (benchdata.Cell, error) {
	const rounds = 64 // between looks at the clock
	run := func(d time.Duration) (ops int64, elapsed time.Duration) {
		before, start := done(), time.Now()
		for ; elapsed < d && ctx.Err() == nil; elapsed = time.Since(start) {
			for range rounds {
				round()
			}
		}
		return done() - before, elapsed
	}
	run(c.warmup())
	before := ownCPU.read()
	ops, elapsed := run(c.time)
	cpu := ownCPU.read() - before
	if ctx.Err() != nil {
		return benchdata.Cell{}, ctx.Err()
	}
	got := benchdata.Cell{Value: c.w.value(ops, elapsed), Ops: ops, Seconds: elapsed.Seconds(), Counts: &benchdata.Counts{}}
	if cpu > 0 {
		got.CPU = &benchdata.CPU{Client: cpu.Seconds()} // the threads of one process
	}
	return got, nil
}

// measureBounce has two threads copy a message to and fro, each on a core of its own.
func measureBounce(ctx context.Context, c *cell) (got benchdata.Cell, err error) {
	x, y := make([]byte, c.w.size), make([]byte, c.w.size)
	var there, back line
	var ended atomic.Bool
	onTwoCores(c.cpus, func() {
		n := uint32(0)
		got, err = measureRounds(ctx, c, func() {
			n++
			copy(y, x)
			there.n.Store(n)
			for back.n.Load() != n {
			}
		}, func() int64 { return int64(n) })
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
