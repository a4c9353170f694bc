package verbs_test

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestAccessFlags(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	for a := range verbs.Access(1 << 8) {
		_, err := pd.RegMR(make([]byte, 8), a)
		changes := a&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0
		switch {
		case changes && a&verbs.AccessLocalWrite == 0:
			wantErr(t, a.String(), err, verbs.ErrInvalid, "needs ACCESS_LOCAL_WRITE as well")
		case err != nil:
			t.Errorf("access %v: %v, want no error", a, err)
		}
	}
	_, err := pd.RegMR(make([]byte, 8), verbs.AccessRemoteRead|1<<15)
	wantErr(t, "unknown flag", err, verbs.ErrInvalid, "register mr in pd 1: unknown access flags 0x8000")
	mr := must(pd.AllocMR(1, verbs.AccessRemoteRead|verbs.AccessRelaxedOrdering))(t)
	if mr.Access() != verbs.AccessRemoteRead|verbs.AccessRelaxedOrdering {
		t.Errorf("access %v, want what the region was registered with", mr.Access())
	}
	_, err = pd.AllocMR(8, verbs.AccessRemoteWrite)
	wantErr(t, "AllocMR", err, verbs.ErrInvalid, "alloc mr in pd 1: ACCESS_REMOTE_WRITE needs ACCESS_LOCAL_WRITE as well")
}

func TestRegisterArguments(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	_, err := pd.RegMR(nil, 0)
	wantErr(t, "nil", err, verbs.ErrInvalid, "the buffer is empty")
	_, err = pd.RegDmabuf(0, 0, 4096, 0, 0)
	wantErr(t, "RegDmabuf on a software device", err, verbs.ErrUnsupported, "register dmabuf mr in pd 1: the device reaches memory of the host alone")
	_, err = pd.RegMRIOVA([]byte{}, 1, 0)
	wantErr(t, "empty", err, verbs.ErrInvalid, "the buffer is empty")
	_, err = pd.RegMRIOVA(make([]byte, 16), math.MaxUint64-14, 0)
	wantErr(t, "end of addresses", err, verbs.ErrInvalid, "pass the end of the address space")
	_, err = pd.RegMRIOVA(make([]byte, 16), 0, verbs.AccessZeroBased)
	wantErr(t, "zero-based with an iova", err, verbs.ErrInvalid, "exclude each other")
	for _, n := range []int{0, -1, math.MinInt} {
		_, err = pd.AllocMR(n, 0)
		wantErr(t, "AllocMR", err, verbs.ErrInvalid, "allocate at least one")
	}
	_, err = pd.AllocMR(math.MaxInt, 0)
	wantErr(t, "AllocMR of everything", err, verbs.ErrLimit, "alloc mr in pd 1: allocate 9223372036854775807 bytes")
	check(t, pd.Close())
}

// TestReregName: a region that has other keys has the name of its new one, in errors about it and about others. Those
// that name it may be made meanwhile.
func TestReregName(t *testing.T) {
	x, _ := pair(t)
	mr := must(x.PD.AllocMR(8, verbs.AccessMWBind))(t)
	other := must(x.Device.AllocPD())(t)
	bind := verbs.MWBind{MW: must(x.PD.AllocMW(verbs.MWType1))(t), MR: mr, Addr: mr.Addr(), Length: 8}
	foreign := must(other.AllocMR(8, verbs.AccessMWBind))(t)
	was := mr.LKey()
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			if err := x.PD.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("close of the PD: %v, want ErrBusy", err)
			}
			err := x.QP.BindMW(verbs.SendWR{}, verbs.MWBind{MW: bind.MW, MR: foreign, Addr: bind.Addr, Length: 8})
			wantErr(t, "bind to a region of another PD", err, verbs.ErrInvalid, "is of another PD than the QP")
		})
	}
	check(t, mr.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessMWBind|verbs.AccessLocalWrite))
	check(t, foreign.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessMWBind|verbs.AccessLocalWrite))
	others.Wait()
	if mr.LKey() == was {
		t.Fatal("the keys are as before, and this test shows nothing")
	}
	name := "mr lkey " + mr.LKey().String()
	wantErr(t, "reregister for nothing", mr.Rereg(0, nil, nil, 0), verbs.ErrInvalid, "reregister "+name+": flags 0x0")
	check(t, x.QP.BindMW(verbs.SendWR{Flags: verbs.SendSignaled}, bind))
	x.Done()
	wantErr(t, "close of a bound region", mr.Close(), verbs.ErrBusy, "close "+name)
	check(t, bind.MW.Close())
	wantErr(t, "close of the other PD", other.Close(), verbs.ErrBusy, "still in use by mr lkey "+foreign.LKey().String())
	check(t, mr.Close())
	wantErr(t, "reregister when closed", mr.Rereg(verbs.ReregAccess, nil, nil, 0), verbs.ErrClosed, name)
}

// A region's addresses are the buffer's own, those of an iova, or count from 0.
func TestAddresses(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	buf := make([]byte, 100)
	own := uint64(uintptr(unsafe.Pointer(&buf[0])))
	tests := []struct {
		name string
		mr   *verbs.MR
		addr uint64
	}{
		{"own", must(pd.RegMR(buf, 0))(t), own},
		{"iova", must(pd.RegMRIOVA(buf, 0x1000_0000_0000, 0))(t), 0x1000_0000_0000},
		{"iova 0", must(pd.RegMRIOVA(buf, 0, 0))(t), 0},
		{"zero-based", must(pd.RegMR(buf, verbs.AccessZeroBased))(t), 0},
	}
	keys := map[verbs.LKey]bool{}
	for _, tt := range tests {
		mr := tt.mr
		if mr.Addr() != tt.addr || mr.Len() != 100 || &mr.Bytes()[0] != &buf[0] || len(mr.Bytes()) != 100 {
			t.Errorf("%s: address %#x, want %#x; %d bytes", tt.name, mr.Addr(), tt.addr, mr.Len())
		}
		if s := mr.SGE(99, 1); s != (verbs.SGE{Addr: tt.addr + 99, Length: 1, LKey: mr.LKey()}) {
			t.Errorf("%s: SGE %+v, want byte 99 of the region", tt.name, s)
		}
		if r := mr.Remote(10); r != (verbs.RemoteAddr{VA: tt.addr + 10, RKey: mr.RKey()}) || r.Add(-10) != mr.Remote(0) {
			t.Errorf("%s: remote address %+v, want byte 10 of the region", tt.name, r)
		}
		keys[mr.LKey()] = true
	}
	if len(keys) != len(tests) {
		t.Errorf("%d keys for %d regions, want as many", len(keys), len(tests))
	}
	page := must(pd.AllocMR(5, 0))(t)
	if page.Addr()%4096 != 0 || page.Len() != 5 || !bytes.Equal(page.Bytes(), make([]byte, 5)) {
		t.Errorf("allocated %d bytes at %#x: % x; want 5 zeros that begin at a page", page.Len(), page.Addr(), page.Bytes())
	}
}

func TestMRPanics(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	backing := make([]byte, 64) // more capacity than is registered
	mr := must(pd.RegMR(backing[:16], 0))(t)
	for _, r := range [][2]int{{-1, 1}, {0, -1}, {17, 0}, {16, 1}, {0, 17}, {math.MaxInt, math.MaxInt}, {8, math.MaxInt}} {
		wantPanic(t, "SGE", func() { mr.SGE(r[0], r[1]) }, "verbs: MR.SGE(", "of a region of 16 bytes")
	}
	for _, off := range []int{-1, 17, math.MaxInt, math.MinInt} {
		wantPanic(t, "Remote", func() { mr.Remote(off) }, "verbs: MR.Remote(", "of a region of 16 bytes")
	}
	for _, n := range []int{0, 16} { // the end is inside
		mr.SGE(n, 0)
		mr.Remote(n)
	}
	backing[8], backing[12] = 7, 9
	if v := mr.Load32(8); v == 0 || mr.Load32(12) == 0 || mr.Load64(8) == 0 {
		t.Errorf("Load32(8) is %#x; want no word to be 0", v)
	}
}

// An SGE has 32 bits for its length.
func TestLongSGE(t *testing.T) {
	gib := 1 << 30
	if 4*gib <= 0 {
		t.Skip("int has 32 bits")
	}
	pd := must(device(t).AllocPD())(t)
	mr, err := pd.AllocMR(5*gib, 0)
	if err != nil {
		t.Skipf("no 5 GiB of untouched memory: %v", err)
	}
	wantPanic(t, "SGE of 4 GiB", func() { mr.SGE(0, 4*gib) }, "an SGE holds at most 4294967295 bytes")
	if s := mr.SGE(gib, 4*gib-1); s.Length != 1<<32-1 || s.Addr != mr.Addr()+1<<30 {
		t.Errorf("SGE %+v, want 4 GiB - 1 bytes from 1 GiB on", s)
	}
	check(t, mr.Close())
}

// TestRemoteBounds writes to every edge of a region: one byte too far is refused and touches
// nothing.
func TestRemoteBounds(t *testing.T) {
	const size, guard = 64, 16
	for _, tt := range []struct {
		name   string
		off, n int
		ok     bool
	}{
		{"whole", 0, size, true}, {"first byte", 0, 1, true}, {"last byte", size - 1, 1, true}, {"nothing, at the end", size, 0, true},
		{"one before", -1, 1, false}, {"one past", size, 1, false}, {"across the start", -1, 2, false},
		{"across the end", size - 1, 2, false}, {"longer than all", 0, size + 1, false}, {"nothing, outside", size + 99, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, y := pair(t)
			backing := make([]byte, guard+size+guard)
			mr := must(y.PD.RegMRIOVA(backing[guard:guard+size], 1<<40, rdmatest.Access))(t)
			src := x.MR(256)
			for i := range src.Bytes() {
				src.Bytes()[i] = 0xff
			}
			x.Send(write(1, src.SGE(0, tt.n), mr.Remote(0).Add(tt.off)))
			wc := x.Next()
			want := make([]byte, len(backing))
			if tt.ok {
				copy(want[guard+min(tt.off, size):], src.Bytes()[:tt.n])
				if err := wc.Err(); err != nil {
					t.Error(err)
				}
			} else if wc.Status != verbs.WCRemAccessErr {
				t.Errorf("status %v, want %v", wc.Status, verbs.WCRemAccessErr)
			}
			check(t, mr.Close()) // nothing of the other end's is in flight
			if !bytes.Equal(backing, want) {
				t.Errorf("memory is % x, want % x", backing, want)
			}
		})
	}
}

// TestWrongKeys checks that a key of another PD, a mangled key and the key of a closed region open
// nothing, at either end, and that the completion's text says which of them it was.
func TestWrongKeys(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		remote     bool
	}{
		{"mangled", "no such memory region", false}, {"closed", "no such memory region", false}, {"another PD", "belongs to another PD", false},
		{"mangled", "check the rkey", true}, {"closed", "check the rkey", true}, {"another PD", "check the rkey", true},
	} {
		x, y := pair(t)
		e, want := x, verbs.WCLocProtErr
		if tt.remote {
			e, want = y, verbs.WCRemAccessErr
		}
		bad := e.MR(64)
		at, key := bad.Remote(0), bad.LKey()
		switch tt.name {
		case "mangled":
			at.RKey, key = at.RKey^1<<8, key^1<<8 // the two differ in some of the lowest 8 bits
		case "closed":
			check(t, bad.Close())
		case "another PD":
			pd := must(e.Device.AllocPD())(t)
			bad = must(pd.AllocMR(64, rdmatest.Access))(t)
			at, key = bad.Remote(0), bad.LKey()
		}
		src, dst := x.MR(64), y.MR(64)
		wr := write(1, verbs.SGE{Addr: at.VA, Length: 8, LKey: key}, dst.Remote(0))
		if tt.remote {
			wr = write(1, src.SGE(0, 8), at)
		}
		x.Send(wr)
		if wc := x.Next(); wc.Status != want || !errorHas(wc.Err(), tt.text) {
			t.Errorf("%s, remote %v: %v, want %v: %q", tt.name, tt.remote, wc.Err(), want, tt.text)
		}
	}
}

// TestCloseMRInFlight closes the memory at either end of a long WRITE or READ. The work request
// fails; it neither hangs nor touches the closed memory.
func TestCloseMRInFlight(t *testing.T) {
	for _, tt := range []struct {
		name   string
		read   bool
		remote bool
		want   verbs.WCStatus
	}{
		{"WRITE from", false, false, verbs.WCLocProtErr},
		{"WRITE to", false, true, verbs.WCRemAccessErr},
		{"READ into", true, false, verbs.WCLocProtErr},
		{"READ from", true, true, verbs.WCRemAccessErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := rdmatest.New(t, rdmatest.Config{Delay: time.Millisecond})
				x, y := rdmatest.Connect(t, net.Device(), net.Device())
				const size = 8 << 20 // several round trips
				buf := make([]byte, size)
				local := x.MR(size)
				remote := must(y.PD.RegMR(buf, rdmatest.Access))(t)
				wr := write(5, local.SGE(0, size), remote.Remote(0))
				if tt.read {
					wr.Op = verbs.OpRDMARead
				}
				x.Send(wr)
				<-time.After(5 * time.Millisecond / 2) // of the bubble: half-way through
				if tt.remote {
					check(t, remote.Close())
					clear(buf) // the race detector would see another goroutine that uses it
				} else {
					check(t, local.Close())
				}
				if wc := x.Next(); wc.ID != 5 || wc.Status != tt.want {
					t.Errorf("completion %+v: %v, want ID 5 with %v", wc, wc.Err(), tt.want)
				}
				if tt.remote && !bytes.Equal(buf, make([]byte, size)) {
					t.Error("closed memory was written to")
				}
				if s := x.QP.State(); s != verbs.QPStateErr {
					t.Errorf("the QP is in %v, want QPS_ERR", s)
				}
			})
		})
	}
}

// TestCloseMRUnderWrites checks that the buffer belongs to the program alone once Close has returned. A
// write that comes later would show in the data, and to the race detector.
func TestCloseMRUnderWrites(t *testing.T) {
	const size = 1 << 16
	buf := make([]byte, size)
	for range 10 {
		x, y := pair(t)
		src := x.MR(size)
		fill(src, 0xff)
		mr := must(y.PD.RegMR(buf, rdmatest.Access))(t)
		for range 8 {
			x.Send(write(1, src.SGE(0, size), mr.Remote(0)))
		}
		spin(t, "the last word of the first packet, which is stored last", func() bool { return mr.Load64(4096-8) != 0 })
		check(t, mr.Close())
		clear(buf)
		for range 8 {
			x.Next()
		}
		if !bytes.Equal(buf, make([]byte, size)) {
			t.Fatal("memory was written to after Close")
		}
	}
}

// The buffer of a closed region is collected. That of an open region is kept, even if the program has no
// reference to either.
func TestRegionKeepsBuffer(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	collected := make(chan struct{})
	register := func() *verbs.MR {
		buf := new([1 << 16]byte)
		runtime.AddCleanup(buf, func(c chan struct{}) { close(c) }, collected)
		return must(pd.RegMR(buf[:], 0))(t)
	}
	mr := register()
	for range 3 {
		runtime.GC()
	}
	select {
	case <-collected:
		t.Fatal("the buffer of an open region was collected")
	default:
	}
	check(t, mr.Close())
	mr = nil
	waitCollected(t, collected)
}

// waitCollected runs the garbage collector until c is closed.
func waitCollected(t *testing.T, c chan struct{}) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); runtime.Gosched() {
		runtime.GC()
		select {
		case <-c:
			return
		default:
		}
	}
	t.Error("still in memory after Close")
}
