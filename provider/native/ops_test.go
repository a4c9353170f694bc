//go:build linux && (amd64 || arm64)

package native

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// flush is a signaled FLUSH of the second half of the region.
func (p *pair) flush(id uint64) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: p.mr.Remote(1 << 11),
		Flush: verbs.Flush{Length: 1 << 11, Placement: verbs.FlushGlobal}}
}

// atomicWrite is a signaled ATOMIC WRITE of a word from a place of the region to its second half.
func (p *pair) atomicWrite(id uint64, from int) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicWrite, Flags: verbs.SendSignaled, Remote: p.mr.Remote(1 << 11), SGList: []verbs.SGE{p.mr.SGE(from, 8)}}
}

// TestMixed: work requests of a list complete in its order, whichever way each goes to the library, and so they take effect.
func TestMixed(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	for i := range 64 {
		binary.NativeEndian.PutUint64(p.mr.Bytes()[8*i:], uint64(i))
	}
	var wrs []verbs.SendWR
	var ops []verbs.WCOpcode
	add := func(op verbs.WCOpcode, w verbs.SendWR) { wrs, ops = append(wrs, w), append(ops, op) }
	for i := range pairDepth / 4 {
		w := p.write(uint64(len(wrs)))
		w.SGList = []verbs.SGE{p.mr.SGE(8*(i%8), 8)}
		add(verbs.WCRDMAWrite, w)
		read := verbs.SendWR{ID: uint64(len(wrs)), Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: p.mr.Remote(1 << 11), SGList: []verbs.SGE{p.mr.SGE(1024+16*i, 8)}}
		switch i % 4 { // so that runs of both have several lengths
		case 0:
			add(verbs.WCAtomicWrite, p.atomicWrite(uint64(len(wrs)), 8*(i+20)))
			add(verbs.WCFlush, p.flush(uint64(len(wrs))))
		case 1:
			w := p.atomicWrite(uint64(len(wrs)), 0)
			w.Flags |= verbs.SendInline
			w.SGList, w.InlineData = nil, p.mr.Bytes()[8*(i+20):8*(i+21)]
			add(verbs.WCAtomicWrite, w)
		case 2:
			w := p.atomicWrite(uint64(len(wrs)), 0)
			w.SGList = []verbs.SGE{p.mr.SGE(8*(i+20), 3), p.mr.SGE(0, 0), p.mr.SGE(8*(i+20)+3, 5)}
			add(verbs.WCAtomicWrite, w)
		}
		read.ID = uint64(len(wrs))
		add(verbs.WCRDMARead, read)
	}
	if n, err := p.a.PostSend(wrs); n != len(wrs) || err != nil {
		t.Fatalf("%d of %d are posted: %v", n, len(wrs), err)
	}
	wcs := make([]verbs.WC, len(wrs)+1)
	if n := must(p.cq.Poll(wcs))(t); n != len(wrs) {
		t.Fatalf("%d completions, want %d", n, len(wrs))
	}
	for i, op := range ops {
		if wc := &wcs[i]; wc.ID != uint64(i) || wc.Op != op || wc.Status != verbs.WCSuccess || wc.QP != p.a {
			t.Errorf("completion %d: %+v, want %v", i, wc, op)
		}
	}
	for i := range pairDepth / 4 {
		want := uint64(i + 20)
		if i%4 == 3 {
			want = uint64(i % 8) // no ATOMIC WRITE behind the WRITE
		}
		if got := p.mr.Load64(1024 + 16*i); got != want {
			t.Errorf("READ %d: got %d, want %d", i, got, want)
		}
	}
}

// TestMixedFails: what is posted before a work request that the library or this package refuses stays posted, and the number says so.
func TestMixedFails(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	list := func(w verbs.SendWR) []verbs.SendWR {
		return []verbs.SendWR{p.write(1), p.flush(2), p.write(3), w, p.write(5)}
	}
	bad := p.atomicWrite(4, 0)
	bad.SGList[0].LKey++
	for _, c := range []struct {
		what  string
		wrs   []verbs.SendWR
		errno syscall.Errno
		posts int
		kind  error
		parts []string
	}{
		{"unknown region", list(bad), 0, 3, verbs.ErrInvalid, []string{"the word of an ATOMIC WRITE", "no region has lkey", "work request 3 of the list"}},
		{"FLUSH without room", list(p.flush(4)), syscall.ENOSPC, 1, verbs.ErrQueueFull, []string{"ibv_wr_complete", "poll for completions", "work request 1 of the list"}},
		{"ATOMIC WRITE without room", []verbs.SendWR{p.atomicWrite(1, 0), p.write(2)}, syscall.ENOMEM, 0, verbs.ErrQueueFull, []string{"work request 0 of the list"}},
		{"FLUSH refused", list(p.flush(4)), syscall.EINVAL, 1, verbs.ErrInvalid, []string{"ibv_wr_complete"}},
	} {
		if c.errno != 0 {
			f.fail("ibv_wr_complete", int32(c.errno))
		}
		n, err := p.a.PostSend(c.wrs)
		wantErr(t, c.what, err, c.kind, c.parts...)
		if n != c.posts {
			t.Errorf("%s: %d are posted, want %d", c.what, n, c.posts)
		}
		var wcs [8]verbs.WC
		if n := must(p.cq.Poll(wcs[:]))(t); n != c.posts {
			t.Errorf("%s: %d completions, want %d", c.what, n, c.posts)
		}
	}
	wrs := make([]verbs.SendWR, pairDepth+1)
	for i := range wrs {
		wrs[i] = p.flush(uint64(i))
	}
	n, err := p.a.PostSend(wrs)
	wantErr(t, "FLUSHes without room", err, verbs.ErrQueueFull, "work request 64 of the list")
	if n != pairDepth {
		t.Errorf("%d FLUSHes are posted, want %d", n, pairDepth)
	}
}

// TestOldDriver: a driver that is older than the kernel lacks operations. The device does not show them, and says why; the others
// work. Where it has none, QPs are made as ever.
func TestOldDriver(t *testing.T) {
	f := fake(t)
	defer f.lacks(0)
	for _, c := range []struct {
		lacks ibv.SendOps
		caps  verbs.DeviceCapFlagsEx
		parts []string
	}{
		{0, verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent | verbs.DeviceAtomicWrite, nil},
		{ibv.WithFlush, verbs.DeviceAtomicWrite, []string{"FLUSH: ibv_create_qp_ex: operation not supported: the kernel has it, and rdma-core from 45 on"}},
		{ibv.WithAtomicWrite, verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent, []string{"ATOMIC WRITE: ibv_create_qp_ex: operation not supported: the kernel has it, and rdma-core from 44 on"}},
		{ibv.WithFlush | ibv.WithAtomicWrite, 0, []string{"FLUSH: ", "; ATOMIC WRITE: "}},
	} {
		f.lacks(uint64(c.lacks))
		p := newPair(t, f, fakeName)
		a := must(p.dev.Query())(t)
		const all = verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent | verbs.DeviceAtomicWrite
		if got := a.DeviceCapFlagsEx & all; got != c.caps {
			t.Errorf("lacks %#x: flags %v, want %v", c.lacks, got, c.caps)
		}
		if (a.MissingOps == "") != (c.lacks == 0) {
			t.Errorf("lacks %#x: the device says %q", c.lacks, a.MissingOps)
		}
		for op, w := range map[ibv.SendOps]verbs.SendWR{ibv.WithFlush: p.flush(1), ibv.WithAtomicWrite: p.atomicWrite(2, 0)} {
			if err := p.a.PostOneSend(w); c.lacks&op != 0 {
				wantErr(t, w.Op.String(), err, verbs.ErrUnsupported, c.parts...)
			} else if err != nil {
				t.Errorf("lacks %#x: %v: %v", c.lacks, w.Op, err)
			}
		}
		check(t, p.a.PostOneSend(p.write(3)))
	}
	f.lacks(0)
	f.fail("ibv_create_qp_ex", int32(syscall.ENOMEM))
	d := f.device(t, fakeName)
	if a := must(d.Query())(t); a.DeviceCapFlagsEx&verbs.DeviceFlushGlobal != 0 || a.MissingOps != "FLUSH: ibv_create_qp_ex: cannot allocate memory" {
		t.Errorf("no QP can be made now: flags %v, and the device says %q", a.DeviceCapFlagsEx, a.MissingOps)
	}
	check(t, d.Close())
}

// TestMixedConcurrent: goroutines post lists of both kinds to one QP. The fake library ends the process where the calls of one work
// request come from two threads, or mix with those of another.
func TestMixedConcurrent(t *testing.T) {
	const workers, rounds = 8, 100
	p := newPair(t, fake(t), fakeName)
	var posted atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			id := uint64(w) << 32
			for range rounds {
				wrs := []verbs.SendWR{p.write(id), p.flush(id + 1), p.atomicWrite(id+2, 0), p.flush(id + 3)}
				for len(wrs) > 0 {
					n, err := p.a.PostSend(wrs)
					posted.Add(int64(n))
					if wrs = wrs[n:]; len(wrs) > 0 {
						wantErr(t, "post", err, verbs.ErrQueueFull)
					}
				}
				id += 4
			}
		})
	}
	next := [workers]uint64{}
	wcs := make([]verbs.WC, 16)
	for done := 0; done < 4*workers*rounds; {
		n, err := p.cq.Wait(t.Context(), wcs)
		check(t, err)
		for _, wc := range wcs[:n] {
			w, i := wc.ID>>32, wc.ID&(1<<32-1)
			if wc.Status != verbs.WCSuccess || i != next[w] {
				t.Fatalf("completion %+v, want %d of goroutine %d", wc, next[w], w)
			}
			next[w]++
		}
		done += n
	}
	wg.Wait()
	if n := posted.Load(); n != 4*workers*rounds {
		t.Errorf("%d are posted, want %d", n, 4*workers*rounds)
	}
}

// TestFile: a region of a file is memory that is written to the file, from any place of it on.
func TestFile(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	file := must(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer file.Close()
	check(t, file.Truncate(3<<12))
	access := everything | verbs.AccessFlushPersistent
	mr := must(p.pd.RegFileMR(int(file.Fd()), 1<<12+8, 100, 1<<40+8, access))(t)
	copy(p.mr.Bytes(), "in the file")
	check(t, p.a.PostOneSend(verbs.SendWR{Op: verbs.OpRDMAWrite, Remote: mr.Remote(3)}, p.mr.SGE(0, 11)))
	flush := verbs.SendWR{Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: mr.Remote(0), Flush: verbs.Flush{Length: 100, Placement: verbs.FlushPersistent}}
	check(t, p.a.PostOneSend(flush))
	var wcs [2]verbs.WC
	if n := must(p.cq.Poll(wcs[:]))(t); n != 1 || wcs[0].Op != verbs.WCFlush || wcs[0].Err() != nil {
		t.Fatalf("%d completions: %+v", n, wcs[0])
	}
	got := make([]byte, 11)
	_ = must(file.ReadAt(got, 1<<12+8+3))(t)
	if string(got) != "in the file" || string(mr.Bytes()[3:14]) != "in the file" || mr.Addr() != 1<<40+8 {
		t.Errorf("the file has %q, and the region %q at %#x", got, mr.Bytes()[3:14], mr.Addr())
	}
	check(t, mr.Rereg(verbs.ReregTranslation, nil, make([]byte, 4096), 0))
	check(t, mr.Close())
	before := heldNow(f)
	_, err := p.pd.RegFileMR(-1, 0, 8, 0, access)
	wantErr(t, "no file", err, verbs.ErrInvalid, "map 8 bytes of descriptor -1", "bad file descriptor")
	f.fail("ibv_reg_mr_iova2", int32(syscall.EINVAL))
	_, err = p.pd.RegFileMR(int(file.Fd()), 0, 8, 0, access)
	wantErr(t, "no persistent memory", err, verbs.ErrInvalid, "ibv_reg_mr_iova2", "mounted with dax")
	if got := heldNow(f); got != before {
		t.Errorf("%+v are held, and %+v before", got, before)
	}
}
