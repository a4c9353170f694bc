package main

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// printEnd prints a line about an end in one of the address formats.
func printEnd(w io.Writer, format string, e pingpongEnd) {
	fmt.Fprintf(w, format, e.LID, e.QPN, e.PSN, e.GID)
}

// printResult prints throughput and time a round. The C program keeps the microseconds in a
// float, and its rounding shows.
func printResult(w io.Writer, size int64, iters int, d time.Duration) {
	usec := float64(float32(d.Microseconds()))
	bytes := size * int64(iters) * 2
	fmt.Fprintf(w, "%d bytes in %.2f seconds = %s Mbit/sec\n", bytes, usec/1e6, cFloat(float64(bytes)*8/usec))
	fmt.Fprintf(w, "%d iters in %.2f seconds = %s usec/iter\n", iters, usec/1e6, cFloat(usec/float64(iters)))
}

// cFloat is C's %.2f: with -n 0 the programs divide by zero.
func cFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "-nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return fmt.Sprintf("%.2f", f)
}

// wcStatusText is ibv_wc_status_str.
func wcStatusText(s verbs.WCStatus) string {
	if int(s) < len(wcStatusTexts) {
		return wcStatusTexts[s]
	}
	return "unknown"
}

var wcStatusTexts = [...]string{
	"success",
	"local length error",
	"local QP operation error",
	"local EE context operation error",
	"local protection error",
	"Work Request Flushed Error",
	"memory management operation error",
	"bad response error",
	"local access error",
	"remote invalid request error",
	"remote access error",
	"remote operation error",
	"transport retry counter exceeded",
	"RNR retry counter exceeded",
	"local RDD violation error",
	"remote invalid RD request",
	"aborted error",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout error",
	"general error",
	"TM error",
	"TM software rendezvous",
}
