//go:build !adverb_portable

package shm

import "testing"

// BenchmarkRoundTrip64 sends a record of 64 bytes there and back, between two goroutines that poll.
func BenchmarkRoundTrip64(b *testing.B) {
	there, arrives, _ := lane(b)
	back, returns, _ := lane(b)
	record := make([]byte, 64)
	take := func(in *In) {
		for in.Next() == nil {
		}
		in.Release()
	}
	n := 0
	done := make(chan int)
	go func() {
		for range b.N {
			take(arrives)
			send(back, record)
		}
		close(done)
	}()
	for range b.N {
		send(there, record)
		take(returns)
		n++
	}
	<-done
}
