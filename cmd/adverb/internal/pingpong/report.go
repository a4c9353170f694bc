package pingpong

import (
	"fmt"
	"io"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
)

// printEnd prints a line about an end in one of the address formats.
func printEnd(w io.Writer, format string, e exchange.End) {
	fmt.Fprintf(w, format, e.LID, e.QPN, e.PSN, e.GID)
}

// printResult prints the throughput and the time of a round. The C program keeps the microseconds
// in a float, and the rounding shows in its output.
func printResult(w io.Writer, size int64, iters int, d time.Duration) {
	usec := float64(float32(d.Microseconds()))
	bytes := size * int64(iters) * 2
	fmt.Fprintf(w, "%d bytes in %.2f seconds = %s Mbit/sec\n", bytes, usec/1e6, clib.Float(float64(bytes)*8/usec))
	fmt.Fprintf(w, "%d iters in %.2f seconds = %s usec/iter\n", iters, usec/1e6, clib.Float(usec/float64(iters)))
}
