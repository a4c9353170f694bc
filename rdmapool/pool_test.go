package rdmapool_test

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func newPool(t *testing.T, c *rdmapool.Config) *rdmapool.Pool {
	t.Helper()
	pd, err := rdmatest.New(t).Device().AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	p, err := rdmapool.New(pd, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func get(t *testing.T, p *rdmapool.Pool, n int) *rdmapool.Buffer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	b, err := p.Get(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	if b.Len() != n || len(b.Bytes()) != n {
		t.Fatalf("asked for %d bytes, got a buffer of %d, want as many", n, b.Len())
	}
	return b
}

// TestBuffersDoNotOverlap fills buffers of many sizes, and checks that none has another's bytes. It fills them up to
// their capacity, since a program may append to a buffer.
func TestBuffersDoNotOverlap(t *testing.T) {
	p := newPool(t, nil)
	var bufs []*rdmapool.Buffer
	for i, n := range []int{0, 1, 4095, 4096, 4097, 8192, 100_000, 262_144, 262_145, 1 << 20, 3, 5000} {
		b := get(t, p, n)
		all := b.Bytes()[:cap(b.Bytes())]
		for j := range all {
			all[j] = byte(i + 1)
		}
		bufs = append(bufs, b)
	}
	for i, b := range bufs {
		if got, want := b.Remote(0).VA, b.SGE(0, 0).Addr; got != want {
			t.Errorf("buffer %d is at %#x for a peer, want %#x as for this end", i, got, want)
		}
		for j, c := range b.Bytes() {
			if c != byte(i+1) {
				t.Fatalf("byte %d of buffer %d is %d, want %d", j, i, c, i+1)
			}
		}
	}
	if err := p.Close(); err != nil { // what is lent out stays valid
		t.Error(err)
	}
	for i, b := range bufs {
		if n := b.Len(); n > 0 && b.Bytes()[n-1] != byte(i+1) {
			t.Errorf("after Close buffer %d ends with %d, want %d", i, b.Bytes()[n-1], i+1)
		}
		b.Release()
	}
	if s := p.Stats(); s.Lent != 0 || s.Registered != 0 {
		t.Errorf("%d bytes are lent out and %d registered after all was released, want none", s.Lent, s.Registered)
	}
	if _, err := p.Get(t.Context(), 1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("get after close: %v, want %v", err, verbs.ErrClosed)
	}
}

// TestLimit checks that the pool never registers more than its limit, that a Get beyond it waits,
// and that idle memory of one size makes room for another.
func TestLimit(t *testing.T) {
	const limit = 1 << 20
	p := newPool(t, &rdmapool.Config{Limit: limit})
	if _, err := p.Get(t.Context(), limit+1); !errors.Is(err, rdmapool.ErrTooLarge) {
		t.Errorf("get more than the limit: %v, want %v", err, rdmapool.ErrTooLarge)
	}
	small := get(t, p, 100)
	if b := p.TryGet(limit); b != nil {
		t.Fatal("all of the limit was had although a buffer is lent out")
	}
	got := make(chan *rdmapool.Buffer)
	go func() {
		b, err := p.Get(context.Background(), limit)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	for deadline := time.Now().Add(rdmatest.Patience); p.Stats().Waiting == 0; runtime.Gosched() {
		select {
		case <-got:
			t.Fatal("Get did not wait")
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits after %v, want Get to", rdmatest.Patience)
		}
	}
	if b := p.TryGet(100); b != nil {
		t.Error("TryGet went past a Get that waits")
	}
	small.Release()
	large := <-got
	if s := p.Stats(); s.Registered != limit {
		t.Errorf("%d bytes are registered, want %d", s.Registered, limit)
	}
	large.Release()
	get(t, p, 100).Release()
}

// TestSmallLimit: a limit below the length of a region for small buffers is used up, and one below a buffer's is refused.
func TestSmallLimit(t *testing.T) {
	p := newPool(t, &rdmapool.Config{Limit: 2 << 12})
	for i := range 2 {
		if p.TryGet(100) == nil {
			t.Errorf("buffer %d of two in a limit of 8192 bytes: got none", i)
		}
	}
	if p.TryGet(100) != nil {
		t.Error("the third buffer of 4096 bytes in a limit of 8192: got one, want none")
	}
	if _, err := rdmapool.New(p.PD(), &rdmapool.Config{Limit: 1<<12 - 1}); err == nil {
		t.Error("a limit of 4095 bytes: got a pool, want an error")
	}
}

// result is what a Get has returned.
type result struct {
	buf *rdmapool.Buffer
	err error
}

// goGet calls Get in a goroutine of a bubble. When it returns, Get has returned too, or waits.
func goGet(ctx context.Context, p *rdmapool.Pool, n int) <-chan result {
	c := make(chan result, 1)
	go func() {
		b, err := p.Get(ctx, n)
		c <- result{b, err}
	}()
	synctest.Wait()
	return c
}

// TestGetIsCancelled cancels Gets that wait. Who waits behind them may be content with less.
func TestGetIsCancelled(t *testing.T) { synctest.Test(t, testGetIsCancelled) }

func testGetIsCancelled(t *testing.T) {
	const limit = 1 << 20
	p := newPool(t, &rdmapool.Config{Limit: limit})
	all := get(t, p, limit)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := p.Get(ctx, 1); !errors.Is(err, cause) {
		t.Errorf("cancelled get: %v, want %v", err, cause)
	}
	all.Release()
	get(t, p, limit).Release()

	small := get(t, p, 100)
	ctx, cancel = context.WithCancelCause(t.Context())
	first, second := goGet(ctx, p, limit), goGet(t.Context(), p, 100)
	cancel(cause)
	if g := <-first; !errors.Is(g.err, cause) {
		t.Errorf("cancelled get that waits: %v, want %v", g.err, cause)
	}
	synctest.Wait()
	if n := p.Stats().Waiting; n != 0 {
		t.Errorf("%d wait behind a Get that was cancelled, want none: there is room", n)
	}
	small.Release()
	if g := <-second; g.err != nil {
		t.Errorf("a Get behind one that was cancelled: %v, want a buffer", g.err)
	} else {
		g.buf.Release()
	}

	for range 50 { // one of both comes first, and no buffer is lost
		small := get(t, p, 100)
		ctx, cancel := context.WithCancel(t.Context())
		got := goGet(ctx, p, limit)
		cancel()
		small.Release()
		if g := <-got; g.buf != nil {
			g.buf.Release()
		}
		if n := p.Stats().Lent; n != 0 {
			t.Fatalf("after a Get that was cancelled and served at once: %d bytes are lent out, want none", n)
		}
	}
}

// TestGetFails has the device refuse memory, of which no host has so much, while a Get waits for it. The limit allows
// it once what is lent out has come back.
func TestGetFails(t *testing.T) { synctest.Test(t, testGetFails) }

func testGetFails(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("a host may have as much memory as an int can count")
	}
	const limit = 1 << (bits.UintSize - 4)
	p := newPool(t, &rdmapool.Config{Limit: limit})
	small := get(t, p, 100)
	first, second := goGet(t.Context(), p, limit), goGet(t.Context(), p, 100)
	small.Release()
	synctest.Wait()
	if n := p.Stats().Waiting; n != 0 {
		t.Errorf("%d wait after the device has refused memory, want none", n)
		p.Close() // ends their waiting
	}
	if g := <-first; g.err == nil || errors.Is(g.err, verbs.ErrClosed) {
		t.Errorf("a Get of more than the host has: %v, want the device's error", g.err)
	}
	if g := <-second; g.err != nil {
		t.Errorf("a Get behind one that has failed: %v, want a buffer", g.err)
	} else {
		g.buf.Release()
	}
}

// TestManyUsers lends out more than the limit to many goroutines, none of which may starve.
func TestManyUsers(t *testing.T) {
	const limit = 1 << 20
	p := newPool(t, &rdmapool.Config{Limit: limit})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range 200 {
				b := get(t, p, r.IntN(limit/2))
				for j := 0; j < b.Len(); j += 4096 {
					b.Bytes()[j] = byte(i)
				}
				for j := 0; j < b.Len(); j += 4096 {
					if b.Bytes()[j] != byte(i) {
						t.Error("two users have the same memory")
						break
					}
				}
				if s := p.Stats(); s.Registered > limit {
					t.Errorf("%d bytes are registered, above the limit, want %d at most", s.Registered, limit)
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestMisusesPanic(t *testing.T) {
	p := newPool(t, nil)
	b := get(t, p, 100)
	for _, tt := range []struct {
		what string
		f    func()
	}{
		{"SGE(90, 11)", func() { b.SGE(90, 11) }},
		{"SGE(-1, 1)", func() { b.SGE(-1, 1) }},
		{"Remote(101)", func() { b.Remote(101) }},
		{"SetLen(4097)", func() { b.SetLen(4097) }},
		{"released twice", func() { b.Release(); b.Release() }},
	} {
		func() {
			defer func() {
				if r, _ := recover().(string); !strings.Contains(r, tt.what) {
					t.Errorf("%s: panic %q, want one that says so", tt.what, r)
				}
			}()
			tt.f()
		}()
	}
}

func TestGetAllocatesNothing(t *testing.T) {
	p := newPool(t, nil)
	ctx := t.Context()
	f := func() {
		a, err := p.Get(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.Get(ctx, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		a.Release()
		b.Release()
	}
	f()
	if n := testing.AllocsPerRun(500, f); n != 0 {
		t.Errorf("get and release: %v allocations, want none", n)
	}
}
