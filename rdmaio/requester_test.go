package rdmaio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	t.Cleanup(cancel)
	return ctx
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newRequester makes a requester, and a region of n bytes at the other end.
func newRequester(t testing.TB, n int, faults rdmatest.Config, o rdmatest.Options) (*Requester, *verbs.MR, *rdmatest.Network) {
	t.Helper()
	net := rdmatest.New(t, faults)
	x, y := rdmatest.Connect(t, net.Device(), net.Device(), o)
	mr, err := y.PD.AllocMR(n, rdmatest.Access)
	ok(t, err)
	t.Cleanup(func() { mr.Close() })
	r, err := NewRequester(x.QP, nil)
	ok(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if s := r.Pool().Stats(); s.Lent != 0 || s.Registered != 0 {
			t.Errorf("after Close the pool has %+v, want nothing lent or registered", s)
		}
	})
	return r, mr, net
}

func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

var lossy = rdmatest.Config{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01}

// A region behaves as package io expects.
func TestRegion(t *testing.T) {
	const n = 1_300_003
	r, mr, _ := newRequester(t, n, lossy, rdmatest.Options{})
	var s Span
	b, err := SpanOf(mr).MarshalBinary()
	ok(t, err)
	ok(t, s.UnmarshalBinary(b))
	g := r.Region(s).WithContext(patience(t))
	want := noise(1, n)
	if m, err := io.Copy(io.NewOffsetWriter(g, 0), bytes.NewReader(want)); err != nil || m != n {
		t.Fatalf("%d bytes written, %v, want %d", m, err, n)
	}
	if !bytes.Equal(mr.Bytes(), want) {
		t.Fatal("other bytes than those written")
	}
	got := make([]byte, n+1)
	if m, err := g.ReadAt(got, 0); m != n || err != io.EOF || !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes of %d read, %v, want all, those that were written, and %v", m, n, err, io.EOF)
	}
	if m, err := g.ReadAt(got[:10], n-10); m != 10 || err != nil || !bytes.Equal(got[:10], want[n-10:]) {
		t.Errorf("%d bytes read at the end, %v, want the last 10", m, err)
	}
	ok(t, iotest.TestReader(io.NewSectionReader(g, 1000, 2000), want[1000:3000]))
	for _, tt := range []struct {
		off int64
		n   int
	}{{-1, 1}, {n, 1}, {n + 1, 0}, {n - 1, 2}, {1 << 62, 1}} {
		if m, err := g.WriteAt(got[:tt.n], tt.off); m != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("write %d bytes at %d: %d, %v, want 0, %v", tt.n, tt.off, m, err, verbs.ErrInvalid)
		}
	}
	if _, err := g.ReadAt(got, -1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("read at -1: %v, want %v", err, verbs.ErrInvalid)
	}
	if m, err := g.ReadAt(got, n); m != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v, want 0, %v", m, err, io.EOF)
	}
}

func TestSpanRefuses(t *testing.T) {
	var s Span
	for _, bad := range []Span{{verbs.RemoteAddr{VA: 1}, -1}, {verbs.RemoteAddr{VA: ^uint64(0)}, 2}} {
		b, _ := bad.MarshalBinary()
		if err := s.UnmarshalBinary(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v, want %v", bad, err, verbs.ErrInvalid)
		}
	}
	if err := s.UnmarshalBinary(make([]byte, SpanSize-1)); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("cut short: %v, want %v", err, verbs.ErrInvalid)
	}
}

// More goroutines than places in the queue, and than the pool has room for, each in its part of the memory.
func TestManyAtOnce(t *testing.T) {
	const goroutines, part = 12, 700_000
	r, mr, _ := newRequester(t, goroutines*part+8, lossy, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 5, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	ctx := patience(t)
	const counter = goroutines * part / 8 * 8
	var work sync.WaitGroup
	for i := range goroutines {
		work.Go(func() {
			at := mr.Remote(i * part)
			n := part
			if i == goroutines-1 {
				n -= 8 // the counter is there
			}
			want := noise(uint64(i), n)
			got := make([]byte, n)
			if err := errors.Join(r.Write(ctx, want, at), r.Read(ctx, got, at)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("part %d: %v, want what was written read", i, err)
			}
			for range 10 {
				if _, err := r.FetchAdd(ctx, mr.Remote(counter), 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	if old, err := r.CompareSwap(ctx, mr.Remote(counter), 30*goroutines, 7); err != nil || old != 30*goroutines || mr.Load64(counter) != 7 {
		t.Errorf("the counter was %d and is %d, %v, want %d and 7", old, mr.Load64(counter), err, 30*goroutines)
	}
}

// A call that is given up returns at once, and its buffer comes back when the device is done with it.
func TestGivenUp(t *testing.T) {
	retry := verbs.DefaultRetry
	retry.Timeout = 18 // 1 s each time
	r, mr, net := newRequester(t, 1<<20, rdmatest.Config{}, rdmatest.Options{Retry: retry})
	a, b := r.qp.PD().Device(), mr.PD().Device()
	ok(t, r.Write(patience(t), noise(1, 100), mr.Remote(0)))
	net.Partition(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	buf, err := r.Pool().Get(ctx, 100)
	ok(t, err)
	q, err := r.start(ctx, verbs.SendWR{Op: verbs.OpRDMARead, Remote: mr.Remote(0)}, buf, true, false)
	ok(t, err)
	cancel()
	if err := r.wait(ctx, q); !errors.Is(err, context.Canceled) {
		t.Fatalf("a call that is given up: %v, want %v", err, context.Canceled)
	}
	if r.Pool().Stats().Lent == 0 {
		t.Error("the buffer was released while the device may write to it")
	}
	if err := r.Read(ctx, make([]byte, 10), mr.Remote(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v, want %v", err, context.Canceled)
	}
	net.Heal(a, b)
	ok(t, r.Write(patience(t), noise(2, 100), mr.Remote(0))) // after the given-up Read, as completions are in order
	if s := r.Pool().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes have not come back, want none", s.Lent)
	}
	// All pieces of a long call, too, come back.
	net.Partition(a, b)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { // when the first piece is under way
		for limit := patience(t); r.Pool().Stats().Lent == 0 && !t.Failed(); runtime.Gosched() {
			if limit.Err() != nil {
				t.Error("no piece is under way, want one")
			}
		}
		cancel()
	}()
	if n, err := r.Region(SpanOf(mr)).WithContext(ctx).ReadAt(make([]byte, 1<<20), 0); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("a long read: %d, %v, want 0, %v", n, err, context.Canceled)
	}
	net.Heal(a, b)
	ok(t, r.Write(patience(t), noise(2, 100), mr.Remote(0)))
	if s := r.Pool().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes have not come back, want none", s.Lent)
	}
}

// Close ends the calls that wait, whatever the peer does.
func TestCloseEndsCalls(t *testing.T) {
	r, mr, net := newRequester(t, 1<<20, rdmatest.Config{}, rdmatest.Options{Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	net.Partition(r.qp.PD().Device(), mr.PD().Device())
	var work sync.WaitGroup
	started := make(chan struct{}, 8)
	for range 8 {
		work.Go(func() {
			started <- struct{}{}
			if err := r.Read(patience(t), make([]byte, 600_000), mr.Remote(0)); err == nil {
				t.Error("a peer that is gone has answered")
			}
		})
	}
	for range 8 {
		<-started
	}
	ok(t, r.Close())
	work.Wait()
	if err := r.Write(patience(t), []byte("x"), mr.Remote(0)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("after Close: %v, want %v", err, verbs.ErrClosed)
	}
}

// A request that the QP does not take is over at once, so Close does not wait for the request. In a bubble, where
// Close would not wait long.
func TestNotTaken(t *testing.T) { synctest.Test(t, testNotTaken) }

func testNotTaken(t *testing.T) {
	r, mr, _ := newRequester(t, 100, rdmatest.Config{}, rdmatest.Options{})
	wr := verbs.SendWR{Op: verbs.OpRDMAWrite, Remote: mr.Remote(0), InlineData: make([]byte, 1<<20)}
	if err := r.Do(patience(t), wr, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("1 MiB of inline data: %v, want %v", err, verbs.ErrInvalid)
	}
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	select {
	case err := <-closed:
		ok(t, err)
	case <-patience(t).Done():
		t.Fatal("Close waits for a request that the QP has not taken, want it to return")
	}
}

// A request that the peer refuses fails with the status, and so do all later requests.
func TestRefused(t *testing.T) {
	r, mr, _ := newRequester(t, 100, rdmatest.Config{}, rdmatest.Options{})
	if err := r.Read(patience(t), make([]byte, 101), mr.Remote(0)); !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("beyond the region: %v, want %v", err, verbs.WCRemAccessErr)
	}
	if err := r.Read(patience(t), make([]byte, 1), mr.Remote(0)); err == nil || !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("after that: %v, want %v", err, verbs.WCRemAccessErr)
	}
	// io.EOF would say that the whole region has come.
	if _, err := r.Region(SpanOf(mr)).WithContext(patience(t)).ReadAt(make([]byte, 101), 0); !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("to the region's end: %v, want %v", err, verbs.WCRemAccessErr)
	}
}

func TestNothingAllocated(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r, mr, _ := newRequester(t, 1<<20, rdmatest.Config{}, rdmatest.Options{})
	ctx := t.Context()
	g := r.Region(SpanOf(mr))
	p := make([]byte, 600_000)
	binary.BigEndian.PutUint64(p, 1)
	once := func() {
		_, werr := g.WriteAt(p, 8)
		_, rerr := g.ReadAt(p, 8)
		_, aerr := r.FetchAdd(ctx, mr.Remote(0), 1)
		ok(t, errors.Join(werr, rerr, aerr))
	}
	for range 10 { // until the network has buffers for the largest window
		once()
	}
	// AllocsPerRun counts those of all goroutines, such as the buffers of the network in memory when more packets than before
	// are under way. What the requester allocates comes with each run.
	least := testing.AllocsPerRun(1, once)
	for range 30 {
		least = min(least, testing.AllocsPerRun(1, once))
	}
	if least > 0 {
		t.Errorf("%.0f allocations, want none", least)
	}
}
