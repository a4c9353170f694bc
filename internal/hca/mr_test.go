package hca

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

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

// Regions outlive their device: what a forgotten goroutine does to their memory is no fault, and the
// pinning ends, which the runtime would else panic about.
func TestDeviceCloseUnpins(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1)
	p, err := impl(d).AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	var regions []verbs.ProviderMR
	for _, a := range []verbs.MRAttr{{Length: 8}, {Buf: make([]byte, 8)}} {
		m, err := p.RegMR(a)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, m)
	}
	if err := impl(d).Close(); err != nil {
		t.Fatal(err)
	}
	for _, m := range regions {
		m.Bytes()[0]++
		if err := m.Close(); err != nil {
			t.Errorf("Close after the device's: %v", err)
		}
	}
	if n := impl(d).keys.Len(); n != 0 {
		t.Errorf("%d regions are left, want none", n)
	}
}
