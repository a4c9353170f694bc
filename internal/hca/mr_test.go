package hca

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// region registers without the facade.
func region(t testing.TB, p verbs.ProviderPD, a verbs.MRAttr) *mr {
	t.Helper()
	m, err := p.RegMR(a)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*mrHandle).mr
}

func allocPD(t testing.TB) *pd {
	t.Helper()
	p, err := impl(simDevice(t, sim.New(sim.Config{}), 1)).AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	return p.(*pd)
}

func TestLookup(t *testing.T) {
	p := allocPD(t)
	other, _ := p.dev.AllocPD()
	buf := make([]byte, 64)
	const rw = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	m := region(t, p, verbs.MRAttr{Buf: buf, Access: rw})
	zero := region(t, p, verbs.MRAttr{Buf: buf, Access: rw | verbs.AccessZeroBased})
	const iova = 0x1000_0000_0000
	moved := region(t, p, verbs.MRAttr{Buf: buf, Access: rw, IOVA: iova, HasIOVA: true})
	wraps := region(t, p, verbs.MRAttr{Buf: buf, Access: rw, IOVA: 1<<64 - 16, HasIOVA: true})
	gone := region(t, p, verbs.MRAttr{Buf: buf, Access: rw})
	gone.Close()
	if m.base != uint64(uintptr(unsafe.Pointer(&buf[0]))) {
		t.Errorf("base %#x is not the buffer's address", m.base)
	}

	for _, tt := range []struct {
		name string
		m    *mr
		pd   verbs.ProviderPD
		key  uint32 // XOR'd
		va   uint64 // beyond the base
		n    uint32
		need verbs.Access
		at   int    // offset in buf that is found
		err  string // or part of the error
		is   error
	}{
		{name: "whole", m: m, n: 64, need: rw},
		{name: "last byte", m: m, va: 63, n: 1, at: 63},
		{name: "nothing at the end", m: m, va: 64, n: 0, at: 64},
		{name: "nothing behind the end", m: m, va: 65, n: 0, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "one byte too long", m: m, n: 65, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "across the end", m: m, va: 60, n: 5, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "one byte before", m: m, va: 1<<64 - 1, n: 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "from before into it", m: m, va: 1<<64 - 8, n: 16, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "longest", m: m, n: 1<<32 - 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "far address", m: m, va: 1 << 63, n: 1<<32 - 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "zero-based", m: zero, va: 8, n: 56, at: 8},
		{name: "zero-based behind", m: zero, va: 8, n: 57, err: "outside the memory region, [0x0, 0x40)", is: verbs.ErrInvalid},
		{name: "iova", m: moved, va: 16, n: 48, at: 16},
		{name: "iova before", m: moved, va: 1<<64 - 1, n: 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "wrapping iova, before 2^64", m: wraps, va: 8, n: 8, at: 8},
		{name: "wrapping iova, across 2^64", m: wraps, va: 12, n: 8, at: 12},
		{name: "wrapping iova, behind 2^64", m: wraps, va: 16, n: 48, at: 16},
		{name: "wrapping iova, outside", m: wraps, va: 16, n: 49, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "key's low bits", m: m, key: 1, n: 1, err: "no such memory region", is: verbs.ErrNotFound},
		{name: "key's high bits", m: m, key: 1 << 31, n: 1, err: "no such memory region", is: verbs.ErrNotFound},
		{name: "closed", m: gone, n: 1, err: "was it deregistered", is: verbs.ErrNotFound},
		{name: "another PD", m: m, pd: other, n: 1, err: "another PD", is: verbs.ErrInvalid},
		{name: "missing access", m: m, n: 1, need: verbs.AccessRemoteRead, err: "ACCESS_REMOTE_READ is needed", is: verbs.ErrInvalid},
		{name: "access in part", m: m, n: 1, need: rw | verbs.AccessRemoteAtomic, err: "is needed", is: verbs.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			domain := p
			if tt.pd != nil {
				domain = tt.pd.(*pd)
			}
			found, b, err := p.dev.lookup(domain, tt.m.key^tt.key, tt.m.base+tt.va, tt.n, tt.need)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, tt.is) {
					t.Errorf("error %v, want one with %q that is %v", err, tt.err, tt.is)
				}
				if n := tt.m.refs.Load(); n != 0 && n != mrClosing {
					t.Errorf("refs %d after a failure", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if found != tt.m || len(b) != int(tt.n) || len(b) > 0 && &b[0] != &buf[tt.at] {
				t.Errorf("found %d bytes elsewhere", len(b))
			}
			if n := found.refs.Load(); n != 1 {
				t.Errorf("refs %d while in use, want 1", n)
			}
			found.release()
		})
	}
}

// Keys are random in all their bits, and not two are the same.
func TestKeys(t *testing.T) {
	p := allocPD(t)
	buf := make([]byte, 8)
	seen := make(map[uint32]bool)
	var or, and uint32 = 0, 1<<32 - 1
	for range 200 {
		m := region(t, p, verbs.MRAttr{Buf: buf})
		if seen[m.key] || uint32(m.LKey()) != m.key || uint32(m.RKey()) != m.key {
			t.Fatalf("key %#x given twice, or lkey and rkey are not it", m.key)
		}
		seen[m.key] = true
		or, and = or|m.key, and&m.key
	}
	// The upper 12 bits are those of one block, chosen at random once.
	if low := uint32(1<<20 - 1); or&low != low || and&low != 0 {
		t.Errorf("bits %#x are never set, %#x always", ^or&low, and&low)
	}
}

func TestAllocMR(t *testing.T) {
	p := allocPD(t)
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20} {
		m := region(t, p, verbs.MRAttr{Length: n, Access: everything})
		b := m.Bytes()
		if len(b) != n || m.Addr()%uint64(os.Getpagesize()) != 0 {
			t.Errorf("%d bytes: %d at %#x, want them to start on a page", n, len(b), m.Addr())
		}
		if !bytes.Equal(b, make([]byte, n)) {
			t.Errorf("%d bytes are not zero", n)
		}
		fill(b, 1)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if runtime.GOOS == "linux" {
		if m, err := p.RegMR(verbs.MRAttr{Length: 1 << 60}); !errors.Is(err, verbs.ErrLimit) {
			t.Errorf("2^60 bytes: %v, %v; want ErrLimit", m, err)
		}
	}
}

// Slices at any address can be registered and written to.
func TestUnalignedMR(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	for off := range 9 {
		from, to := make([]byte, 100), make([]byte, 100)
		fill(from, uint64(off))
		src, err := x.pd.RegMR(from[8-off:], verbs.AccessLocalWrite)
		x.must(err)
		dst, err := y.pd.RegMR(to[off:off+77], everything)
		y.must(err)
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 77)}, Remote: dst.Remote(0)})
		x.done()
		if !bytes.Equal(to[off:off+77], from[8-off:8-off+77]) || !bytes.Equal(to[:off], make([]byte, off)) ||
			!bytes.Equal(to[off+77:], make([]byte, 23-off)) {
			t.Errorf("at offset %d something else was written", off)
		}
		x.must(src.Close())
		y.must(dst.Close())
	}
}

// aligned returns n bytes that start on an address divisible by 16.
func aligned(n int) []byte {
	b := make([]byte, n+16)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 15
	return b[off : off+n]
}

func TestPlace(t *testing.T) {
	const margin, longest = 16, 40
	buf := aligned(margin + 16 + longest + margin)
	src := make([]byte, longest)
	fill(src, 1)
	for off := range 16 {
		for n := range longest + 1 {
			for i := range buf {
				buf[i] = 0xaa
			}
			place(buf[margin+off:margin+off+n], src[:n])
			for i, v := range buf {
				want := byte(0xaa)
				if k := i - margin - off; k >= 0 && k < n {
					want = src[k]
				}
				if v != want {
					t.Fatalf("%d bytes at offset %d: byte %d is %#x, want %#x", n, off, i-margin-off, v, want)
				}
			}
			got := make([]byte, n)
			fetch(got, buf[margin+off:margin+off+n])
			if !bytes.Equal(got, src[:n]) {
				t.Fatalf("fetch of %d bytes at offset %d: %x, want %x", n, off, got, src[:n])
			}
		}
	}
}

// Who sees the last aligned word change sees the rest, behind the word as well.
func TestPlaceOrder(t *testing.T) {
	const longest = 256
	rng := rand.New(rand.NewPCG(1, 2))
	buf := aligned(longest + 16)
	src := make([]byte, longest)
	for round := range uint64(500) {
		off := rng.IntN(8)
		n := 8 + (8-off)&7 + rng.IntN(longest-32)
		dst := buf[off : off+n]
		word := (off + n) &^ 7 // end of the last aligned word
		fill(src, round)
		binary.NativeEndian.PutUint64(src[word-8-off:], round+1)
		go place(dst, src[:n])
		p := (*uint64)(unsafe.Pointer(&buf[word-8]))
		for atomic.LoadUint64(p) != round+1 {
			runtime.Gosched()
		}
		if !bytes.Equal(dst, src[:n]) {
			t.Fatalf("round %d: %d bytes at offset %d were not whole when the last word was", round, n, off)
		}
		clear(buf)
	}
}

// A WRITE of several packets is whole when its last word is there, without a completion.
func TestWatchWrite(t *testing.T) {
	const size = 3 * 4096
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	src, dst := x.mr(size), y.mr(size)
	for round := range uint64(50) {
		fill(src.Bytes(), round)
		binary.NativeEndian.PutUint64(src.Bytes()[size-8:], round+1)
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		for dst.Load64(size-8) != round+1 {
			runtime.Gosched()
		}
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Fatalf("round %d: the last word came before the rest", round)
		}
		x.done()
	}
}

func TestMRCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := region(t, allocPD(t), verbs.MRAttr{Length: 4096})
		m.acquire()
		m.acquire()
		var closed atomic.Bool
		go func() {
			m.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		for range 2 {
			if closed.Load() {
				t.Fatal("Close returned while a packet uses the memory")
			}
			if m.acquire() {
				t.Fatal("a closing region was acquired")
			}
			if _, _, err := m.pd.dev.lookup(m.pd, m.key, m.base, 1, 0); err == nil {
				t.Fatal("a closing region was found")
			}
			m.release()
			synctest.Wait()
		}
		if !closed.Load() {
			t.Fatal("Close did not return when the last packet was done")
		}
		for range 2 {
			if m.acquire() {
				t.Fatal("a closed region was acquired")
			}
		}
	})
}

// Packets that come while a region is being closed either use it before or do not find it.
func TestMRCloseConcurrent(t *testing.T) {
	p := allocPD(t)
	const users = 4
	for range 300 {
		m := region(t, p, verbs.MRAttr{Length: 64})
		var wg sync.WaitGroup
		for range users {
			wg.Go(func() {
				for m.acquire() {
					m.buf[0:1][0]++ // faults when the memory is gone
					m.release()
					break
				}
				for range 20 {
					if m.acquire() {
						m.release()
					}
				}
			})
		}
		m.Close()
		wg.Wait()
	}
}

// Work requests that name a region fail once it is closed, at whichever end it was.
func TestMRClosedInUse(t *testing.T) {
	net := sim.New(sim.Config{})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	for _, tt := range []struct {
		name   string
		op     verbs.Opcode
		remote bool // closed at the peer
		want   verbs.WCStatus
	}{
		{"local of WRITE", verbs.OpRDMAWrite, false, verbs.WCLocProtErr},
		{"local of READ", verbs.OpRDMARead, false, verbs.WCLocProtErr},
		{"remote of WRITE", verbs.OpRDMAWrite, true, verbs.WCRemAccessErr},
		{"remote of READ", verbs.OpRDMARead, true, verbs.WCRemAccessErr},
		{"remote of FETCH_ADD", verbs.OpAtomicFetchAdd, true, verbs.WCRemAccessErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, y := connect(t, a, b, options{})
			local, remote := x.mr(8), y.mr(8)
			wr := verbs.SendWR{Op: tt.op, Flags: signaled, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: remote.Remote(0)}
			x.send(wr)
			x.done()
			closing := local
			if tt.remote {
				closing = remote
			}
			x.must(closing.Close())
			x.send(wr)
			if wc := x.next(); wc.Status != tt.want {
				t.Errorf("%v, want %v", wc.Err(), tt.want)
			}
		})
	}
}

// Remote atomics, the program's own and READs of the word do not lose or tear an update.
func TestAtomicsAgainstCPU(t *testing.T) {
	const remoteAdds, localAdds = 1000, 20_000
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	local := x.mr(16)
	// Of the heap: the race detector does not know memory that is mapped, nor atomics on it.
	word, err := y.pd.RegMR(aligned(8), everything)
	y.must(err)
	p := (*uint64)(unsafe.Pointer(unsafe.SliceData(word.Bytes())))
	var wg sync.WaitGroup
	wg.Go(func() {
		for range localAdds {
			atomic.AddUint64(p, 1<<32)
		}
	})
	var last uint64
	for i := range uint64(remoteAdds) {
		x.send(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: word.Remote(0), Swap: 1},
			verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{local.SGE(8, 8)}, Remote: word.Remote(0)})
		x.done()
		before, after := binary.NativeEndian.Uint64(local.Bytes()), binary.NativeEndian.Uint64(local.Bytes()[8:])
		if uint32(before) != uint32(i) || uint32(after) != uint32(i+1) || before < last>>32<<32 || after>>32 < before>>32 {
			t.Fatalf("FETCH_ADD %d gave %#x and the READ behind it %#x, after %#x", i, before, after, last)
		}
		last = after
	}
	wg.Wait()
	if got := atomic.LoadUint64(p); got != localAdds<<32|remoteAdds {
		t.Errorf("the word is %#x, want %#x", got, uint64(localAdds<<32|remoteAdds))
	}
	// COMPARE_SWAP against the CPU: a lock taken by one of them at a time.
	atomic.StoreUint64(p, 0)
	inside := 0 // guarded by the word
	wg.Go(func() {
		for range 300 {
			for !atomic.CompareAndSwapUint64(p, 0, 1) {
				runtime.Gosched()
			}
			inside++
			atomic.StoreUint64(p, 0)
		}
	})
	for range 300 {
		for {
			x.send(verbs.SendWR{Op: verbs.OpAtomicCmpSwap, Flags: signaled, SGList: []verbs.SGE{local.SGE(0, 8)},
				Remote: word.Remote(0), Compare: 0, Swap: 2})
			x.done()
			if binary.NativeEndian.Uint64(local.Bytes()) == 0 {
				break
			}
		}
		inside++
		atomic.StoreUint64(p, 0)
	}
	wg.Wait()
	if inside != 600 {
		t.Errorf("%d times inside the lock, want 600", inside)
	}
}

// The memory of an atomic must be aligned, whatever its address says.
func TestAtomicUnaligned(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	local := x.mr(8)
	odd, err := y.pd.RegMRIOVA(aligned(32)[4:], 0x1000, everything)
	y.must(err)
	x.send(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, Flags: signaled, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: odd.Remote(0)})
	if wc := x.next(); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("%v, want a remote access error", wc.Err())
	}
}

// Regions outlive their device: what a forgotten goroutine does to their memory is no fault, but the
// pinning ends, which the runtime would else panic about.
func TestDeviceCloseUnpins(t *testing.T) {
	p := allocPD(t)
	m, n := region(t, p, verbs.MRAttr{Length: 8}), region(t, p, verbs.MRAttr{Buf: make([]byte, 8)})
	if err := p.dev.Close(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*mr{m, n} {
		r.buf[0]++
		if err := r.Close(); err != nil {
			t.Errorf("Close after the device's: %v", err)
		}
	}
	region(t, p, verbs.MRAttr{Buf: make([]byte, 8)}).Close()
	if p.dev.mrs.used != 0 {
		t.Errorf("%d regions are left", p.dev.mrs.used)
	}
}

func TestMRLimit(t *testing.T) {
	p := allocPD(t)
	p.dev.mrs.limit = 1
	region(t, p, verbs.MRAttr{Length: 1})
	if _, err := p.RegMR(verbs.MRAttr{Length: 1}); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "max_mr") {
		t.Errorf("%v, want ErrLimit that names max_mr", err)
	}
}
