// Package litmus races two short pieces of code against each other, many times, for tests of code that takes no lock.
//
// A processor may load a word before others see what it has stored before: each of two that store one word and load
// the other's may see the old value. The race detector does not show that, since its own instructions wait for the
// stores, and a test that runs the two pieces one after the other does not either. A litmus test runs them at the same
// moment on two processors. It runs in the build that users get.
package litmus

import (
	"flag"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

var (
	roundsFlag = flag.Int("litmus", 0, "rounds of each litmus test; 0: as many as a moment allows")
	seedFlag   = flag.Uint64("litmusseed", 1, "seed of the delays of litmus tests")
)

const (
	// Without the flag a race takes moment, and with -short shortMoment.
	moment      = 200 * time.Millisecond
	shortMoment = 20 * time.Millisecond

	// So many rounds pass between looks at the clock.
	clockEach = 64

	// In each round one of the two pieces begins up to maxDelay looks at a word later.
	maxDelay = 256

	// Who waits for the other thread gives way to other goroutines after patience looks.
	patience = 10_000
)

// Race runs rounds of a race. In each round prepare runs alone, then a and b run at the same time on two threads, and
// then check runs alone. check returns the empty string, or what is wrong. The first such round ends the race, and the
// test. The two threads take a and b in turn, since one of them has just prepared the memory.
//
// cost says how many rounds of short pieces a round takes as long as. With -litmus=N there are N/cost rounds.
func Race(t *testing.T, cost int, prepare func(), a, b func(), check func() string) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("two processors are needed: on one no store is late")
	}
	rounds, end := math.MaxInt, time.Now().Add(moment)
	switch {
	case *roundsFlag > 0:
		rounds = max(1, *roundsFlag/cost)
	case testing.Short():
		end = time.Now().Add(shortMoment)
	}
	var turn, done atomic.Int64 // rounds that have begun, and that the other thread has ended
	rnd := rand.New(rand.NewPCG(*seedFlag, 0))
	delays := make([]uint8, 1<<12) // drawn before: to draw one takes as long as some of them
	for i := range delays {
		delays[i] = uint8(rnd.UintN(maxDelay))
	}
	run := func(i int, first bool, word *atomic.Int64) {
		if d := delays[i%len(delays)]; (d&1 == 0) == first {
			for range d {
				word.Load()
			}
		}
		if first == (i&1 == 0) {
			a()
		} else {
			b()
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := 1; await(&turn, int64(i)); i++ {
			run(i, false, &turn)
			done.Store(int64(i))
		}
	}()
	defer func() {
		turn.Store(over)
		<-ended
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := 1; i <= rounds && (*roundsFlag > 0 || i%clockEach != 0 || time.Now().Before(end)); i++ {
		prepare()
		turn.Store(int64(i))
		run(i, true, &done)
		await(&done, int64(i))
		if wrong := check(); wrong != "" {
			t.Fatalf("round %d (seed %d): %s", i, *seedFlag, wrong)
		}
	}
}

// over is a turn that ends the other thread.
const over = 1 << 62

// await looks at a count of rounds until it is n. It reports false if the race is over.
func await(count *atomic.Int64, n int64) bool {
	for looks := 1; ; looks++ {
		switch got := count.Load(); {
		case got == over:
			return false
		case got >= n:
			return true
		}
		if looks%patience == 0 {
			runtime.Gosched()
		}
	}
}
