package release

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestStore: who sees a word sees what was stored before.
func TestStore(t *testing.T) {
	const n = 100_000
	var words [64]uint64
	var count, done atomic.Uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(1); i <= n; i++ {
			for i-done.Load() > uint64(len(words)) { // the reader is that far behind
				runtime.Gosched()
			}
			words[i%uint64(len(words))] = i
			Store(&count, i)
		}
	})
	for i := uint64(1); i <= n; i++ {
		for count.Load() < i {
			runtime.Gosched()
		}
		if got := words[i%uint64(len(words))]; got != i {
			t.Fatalf("word %d is %d after it was counted", i, got)
		}
		Store(&done, i)
	}
	wg.Wait()
}

// TestMutex: one at a time holds the lock, also where there are more goroutines than processors.
func TestMutex(t *testing.T) {
	const goroutines, each = 8, 20_000
	var m Mutex
	inside, count := 0, 0
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				m.Lock()
				if inside++; inside != 1 {
					t.Errorf("%d hold the lock", inside)
				}
				count++
				if i%64 == 0 {
					runtime.Gosched() // with the lock held
				}
				inside--
				m.Unlock()
			}
		})
	}
	wg.Wait()
	if count != goroutines*each {
		t.Errorf("counted %d, want %d", count, goroutines*each)
	}
}

func BenchmarkStore(b *testing.B) {
	var w atomic.Uint64
	for i := uint64(0); b.Loop(); i++ {
		Store(&w, i)
	}
}

func BenchmarkMutex(b *testing.B) {
	var m Mutex
	n := 0
	for b.Loop() {
		m.Lock()
		n++
		m.Unlock()
	}
}
