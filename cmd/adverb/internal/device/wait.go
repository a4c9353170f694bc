package device

import (
	"context"
	"runtime"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// spinPolls is how often an empty CQ is polled before the program sleeps until a completion
	// comes. To spin any longer would only take the processor from a peer on the same machine.
	spinPolls = 2000
	// yieldPolls is the number of empty polls after which other goroutines may run. The device's own
	// goroutine may be the one that has the completion. Go may wake a thread for that, on the core which the
	// peer needs, so it is not done often.
	yieldPolls = 128
)

// Wait waits for completions. It polls the CQ for a while, as the C programs do without end, and
// then sleeps. It returns early with ctx's error if ctx ends.
func Wait(ctx context.Context, cq *verbs.CQ, wcs []verbs.WC) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	for i := range spinPolls {
		if n, err := cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if i%yieldPolls == yieldPolls-1 {
			runtime.Gosched()
		}
	}
	return cq.Wait(ctx, wcs)
}
