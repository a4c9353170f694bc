package mem

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// orderTime is for how long the tests of the order look for a violation. Copies that have no order show
// some thousand in that time on two processors.
const orderTime = 100 * time.Millisecond

// orderCases are places of different length and alignment: with and without whole cache lines, and with
// a part of one on either side.
var orderCases = []struct{ off, n int }{{0, 16}, {8, 56}, {0, 256}, {40, 1000}, {0, 4096}, {56, 4104}}

// TestFetchOrder: memory is read upward, and no word in part. The owner stores one value after the other
// in all words, beginning with the last. So a copy in which a word is older than one below it was not read
// upward.
func TestFetchOrder(t *testing.T) {
	for _, c := range orderCases {
		t.Run(fmt.Sprintf("%d at %d", c.n, c.off), func(t *testing.T) {
			readInOrder(t, c.off, c.n, copyFrom)
		})
		for _, to := range []int{8, 4, 3} {
			t.Run(fmt.Sprintf("%d at %d, lent, to %d", c.n, c.off, to), func(t *testing.T) {
				dst := Foreign(alignedTo(64, c.n+64)[to:][:c.n])
				readInOrder(t, c.off, c.n, func(b, src []byte) {
					dst.PlaceShared(src)
					copy(b, dst.Bytes())
				})
			})
		}
	}
}

// readInOrder fails if fetch, which copies n bytes at off to its first argument, does not read upward and by words.
func readInOrder(t *testing.T, off, n int, fetch func(b, src []byte)) {
	src := alignedTo(64, 8192)[off:][:n]
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&src[0])), n/8)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for v := uint64(1); !stop.Load(); v++ {
			for i := len(words) - 1; i >= 0; i-- {
				atomic.StoreUint64(&words[i], v<<32|v)
			}
		}
	}()
	got := make([]uint64, len(words))
	b := unsafe.Slice((*byte)(unsafe.Pointer(&got[0])), n)
	for end := time.Now().Add(orderTime); time.Now().Before(end) && !t.Failed(); {
		fetch(b, src)
		for i, v := range got {
			if v>>32 != v&(1<<32-1) {
				t.Fatalf("word %d is %#x, half old and half new, want one of the two", i, v)
			}
			if i > 0 && v < got[i-1] {
				t.Fatalf("word %d is %#x, and word %d below it %#x, want none older than those below", i, v, i-1, got[i-1])
			}
		}
	}
	stop.Store(true)
	<-done
}

// TestStoreOrder: memory is written upward, and no word in part. Who reads it downward while one value
// after the other is placed finds no word older than one above it. The last word comes last.
func TestStoreOrder(t *testing.T) {
	for _, c := range orderCases {
		t.Run(fmt.Sprintf("%d at %d", c.n, c.off), func(t *testing.T) {
			dst := alignedTo(64, 8192)[c.off:][:c.n]
			words := unsafe.Slice((*uint64)(unsafe.Pointer(&dst[0])), c.n/8)
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				src := make([]uint64, len(words))
				b := unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), c.n)
				for v := uint64(1); !stop.Load(); v++ {
					for i := range src {
						src[i] = v<<32 | v
					}
					place(dst, b)
				}
			}()
			for end := time.Now().Add(orderTime); time.Now().Before(end) && !t.Failed(); {
				above := uint64(0)
				for i := len(words) - 1; i >= 0; i-- {
					v := atomic.LoadUint64(&words[i])
					if v>>32 != v&(1<<32-1) {
						t.Fatalf("word %d is %#x, half old and half new, want one of the two", i, v)
					}
					if v < above {
						t.Fatalf("word %d is %#x, and the one above it was %#x before, want none older than those above", i, v, above)
					}
					above = v
				}
			}
			stop.Store(true)
			<-done
		})
	}
}

// BenchmarkCopy compares with the builtin copy, which has no order.
func BenchmarkCopy(b *testing.B) {
	src, dst := alignedTo(64, 8192), alignedTo(64, 8192)
	for _, n := range []int{8, 64, 1024, 4096} {
		for _, off := range []int{0, 12} { // the device's side, which has headers before the data
			for _, f := range []struct {
				name string
				do   func()
			}{
				{"builtin", func() { copy(dst[:n], src[off:off+n]) }},
				{"place", func() { place(dst[:n], src[off:off+n]) }},
				{"fetch", func() { copyFrom(dst[off:off+n], src[:n]) }},
			} {
				b.Run(fmt.Sprintf("%s/%d/%d", f.name, n, off), func(b *testing.B) {
					b.SetBytes(int64(n))
					for b.Loop() {
						f.do()
					}
				})
			}
		}
	}
}
