package hca

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestUnalignedMR: slices at any address can be registered and written to.
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
			t.Errorf("at offset %d: %v, want %v and zeros around it", off, to, from[8-off:8-off+77])
		}
		x.must(src.Close())
		y.must(dst.Close())
	}
}

// TestTrainLetsGo: once the trains of a WRITE and of a READ have gone, and come, nobody keeps their memory in place.
func TestTrainLetsGo(t *testing.T) {
	const size = 64 << 10
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		src, dst := x.mr(size), y.mr(size)
		x.send(verbs.SendWR{Op: op, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		x.done()
		for _, mr := range []*verbs.MR{src, dst} {
			closed := make(chan error, 1)
			go func() { closed <- mr.Close() }()
			select {
			case err := <-closed:
				x.must(err)
			case <-time.After(patience):
				t.Fatalf("%v: the memory cannot be closed after %v", op, patience)
			}
		}
	}
}

// aligned returns n bytes that start on an address divisible by 16.
func aligned(n int) []byte {
	b := make([]byte, n+16)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & 15
	return b[off : off+n]
}

// TestWatchWrite: when the last word of a WRITE is there, all of it is. No completion is needed.
func TestWatchWrite(t *testing.T) {
	const size = 3 * 4096
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	src, dst := x.mr(size), y.mr(size)
	for round := range uint64(50) {
		fill(src.Bytes(), round)
		binary.NativeEndian.PutUint64(src.Bytes()[size-8:], round+1)
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		for deadline := time.Now().Add(patience); dst.Load64(size-8) != round+1; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: the last word is %#x after %v, want %#x", round, dst.Load64(size-8), patience, round+1)
			}
		}
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Fatalf("round %d: the last word is there before the rest, want it last", round)
		}
		x.done()
	}
}

// TestMRClosedInUse: work requests that name a region fail once it is closed, at either end.
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

// TestKeysMixedUp: an rkey in an SGE and an lkey that a peer was given are refused, and the cause names
// the right one.
func TestKeysMixedUp(t *testing.T) {
	net := sim.New(sim.Config{})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	for _, tt := range []struct {
		name   string
		remote bool // the key of the peer's region is wrong
		want   verbs.WCStatus
		cause  string
	}{
		{"rkey in an SGE", false, verbs.WCLocProtErr, "is the rkey of a memory region: an SGE needs the lkey"},
		{"lkey for the peer", true, verbs.WCRemAccessErr, "NAK"},
	} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAdd} {
			t.Run(tt.name+"/"+op.String(), func(t *testing.T) {
				x, y := connect(t, a, b, options{})
				local, remote := x.mr(8), y.mr(8)
				wr := verbs.SendWR{Op: op, Flags: signaled, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: remote.Remote(0)}
				x.send(wr)
				x.done()
				if tt.remote {
					wr.Remote.RKey = verbs.RKey(remote.LKey())
				} else {
					wr.SGList[0].LKey = verbs.LKey(local.RKey())
				}
				x.send(wr)
				if wc := x.next(); wc.Status != tt.want || !strings.Contains(wc.Err().Error(), tt.cause) {
					t.Errorf("%v, want %v with %q", wc.Err(), tt.want, tt.cause)
				}
			})
		}
	}
}

// TestAtomicsAgainstCPU: remote atomics, the program's own and READs share a word. No update is lost or
// torn.
func TestAtomicsAgainstCPU(t *testing.T) {
	const remoteAdds, localAdds = 1000, 20_000
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	local := x.mr(16)
	// On the heap: the race detector does not know mapped memory, nor atomics on it.
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
		x.send(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, SGList: []verbs.SGE{local.SGE(0, 8)}, Remote: word.Remote(0), CompareAdd: 1},
			verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{local.SGE(8, 8)}, Remote: word.Remote(0)})
		x.done()
		before, after := binary.NativeEndian.Uint64(local.Bytes()), binary.NativeEndian.Uint64(local.Bytes()[8:])
		if uint32(before) != uint32(i) || uint32(after) != uint32(i+1) || before < last>>32<<32 || after>>32 < before>>32 {
			t.Fatalf("FETCH_ADD %d gave %#x and the READ behind it %#x, after %#x; want low halves of %d and %d, and high halves that do not fall", i, before, after, last, i, i+1)
		}
		last = after
	}
	wg.Wait()
	if got := atomic.LoadUint64(p); got != localAdds<<32|remoteAdds {
		t.Errorf("the word is %#x, want %#x", got, uint64(localAdds<<32|remoteAdds))
	}
	// COMPARE_SWAP against the CPU: both take the same lock.
	atomic.StoreUint64(p, 0)
	inside := 0 // guarded by the word
	wg.Go(func() {
		for range 300 {
			for deadline := time.Now().Add(patience); !atomic.CompareAndSwapUint64(p, 0, 1); runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Errorf("the word is %d after %v, want it free, 0, at some time", atomic.LoadUint64(p), patience)
					return
				}
			}
			inside++
			atomic.StoreUint64(p, 0)
		}
	})
	for range 300 {
		for deadline := time.Now().Add(patience); ; {
			if time.Now().After(deadline) {
				t.Fatalf("the word is %d after %v, want it free, 0, at some time", atomic.LoadUint64(p), patience)
			}
			x.send(verbs.SendWR{Op: verbs.OpAtomicCmpSwap, Flags: signaled, SGList: []verbs.SGE{local.SGE(0, 8)},
				Remote: word.Remote(0), CompareAdd: 0, Swap: 2})
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

// TestAtomicUnaligned: the memory of an atomic must be aligned, whatever its virtual address is.
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

// TestDeviceCloseUnpins: regions outlive their device. A forgotten goroutine that uses their memory does
// not fault. The pinning ends: the runtime panics at pinned memory that nobody refers to.
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
			t.Errorf("Close after the device's: %v, want no error", err)
		}
	}
	if n := impl(d).Keys.Len(); n != 0 {
		t.Errorf("%d regions are left, want none", n)
	}
}

// TestBindMWKey: a window of type 1 has its new key when BindMW has returned, though the bind waits in the queue.
func TestBindMWKey(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	region, err := y.pd.AllocMR(64, everything|verbs.AccessMWBind)
	y.must(err)
	mw, err := y.pd.AllocMW(verbs.MWType1)
	y.must(err)
	y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState))
	keys := []verbs.RKey{mw.RKey()}
	for i := range uint64(2) {
		y.must(y.qp.BindMW(verbs.SendWR{ID: i, Flags: signaled}, verbs.MWBind{MW: mw, MR: region, Addr: region.Addr() + 16*i, Length: 16,
			Access: verbs.AccessRemoteWrite}))
		keys = append(keys, mw.RKey())
	}
	if keys[0] == keys[1] || keys[1] == keys[2] || keys[0] == keys[2] {
		t.Errorf("keys %v, before two binds and after each; want three", keys)
	}
	y.must(y.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
	for range 2 {
		y.done()
	}
	if key := mw.RKey(); key != keys[2] {
		t.Errorf("key %v after the binds, want %v as before", key, keys[2])
	}
	write := func(key verbs.RKey) verbs.WC {
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled | verbs.SendInline, InlineData: []byte{1}, Remote: verbs.RemoteAddr{VA: region.Addr() + 16, RKey: key}})
		return x.next()
	}
	if wc := write(keys[2]); wc.Status != verbs.WCSuccess || region.Bytes()[16] != 1 {
		t.Errorf("a WRITE by the key: %v, want success", wc.Status)
	}
	if wc := write(keys[1]); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("a WRITE by the key before it: %v, want WCRemAccessErr", wc.Status)
	}
}
