package main

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/rivals"
)

// TestServe is no test but the other process of a benchmark.
func TestServe(t *testing.T) {
	rivals.Serve(t, func(l net.Listener, _ string, _ int) { serve(t.Context(), l) })
}

// BenchmarkUnary makes calls of 1 KiB, by one caller and by several at a time, on both networks by turns. It reports
// how many times as fast package rsocket is.
func BenchmarkUnary(b *testing.B) {
	text := strings.Repeat("x", 1<<10)
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			var clients [2]client
			for i, r := range rivals.All {
				conn, err := dialBy(r.Dial, rivals.Start(b, i, "grpc", 0))
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				clients[i] = client{conn}
			}
			call := func(i, n int) error {
				var left atomic.Int64
				left.Store(int64(n))
				var work sync.WaitGroup
				for range callers {
					work.Go(func() {
						for left.Add(-1) >= 0 {
							if got, err := clients[i].upper(b.Context(), text); err != nil || len(got) != len(text) {
								b.Errorf("a call: %d bytes, error %v", len(got), err)
								return
							}
						}
					})
				}
				work.Wait()
				return nil
			}
			for i := range clients {
				call(i, callers)
			}
			b.ResetTimer()
			rivals.ByTurns(b, rivals.Turns, call)
		})
	}
}
