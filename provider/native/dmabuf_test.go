//go:build linux && (amd64 || arm64)

package native

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestDmabuf: a region of memory that only the device reaches is written and read by its address. Nothing reaches for it
// here. The fake library takes a file in memory for that of another device.
func TestDmabuf(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	fd := must(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)
	file := os.NewFile(uintptr(fd), "dmabuf")
	defer file.Close()
	check(t, file.Truncate(3<<12))
	mr := must(p.pd.RegDmabuf(fd, 1<<12+8, 100, 1<<40+8, everything))(t)
	if mr.Len() != 100 || mr.Addr() != 1<<40+8 || mr.Bytes() != nil {
		t.Errorf("%d bytes at %#x, of which %d are here", mr.Len(), mr.Addr(), len(mr.Bytes()))
	}
	copy(p.mr.Bytes(), "written by RDMA")
	check(t, p.a.PostOneSend(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: mr.Remote(3)}, p.mr.SGE(0, 15)))
	check(t, p.a.PostOneSend(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: p.mr.Remote(512)}, mr.SGE(3, 15)))
	var wcs [2]verbs.WC
	if n := must(p.cq.Poll(wcs[:]))(t); n != 2 || wcs[0].Err() != nil || wcs[1].Err() != nil {
		t.Fatalf("%d completions: %v, %v", n, wcs[0].Err(), wcs[1].Err())
	}
	var there [15]byte
	_, err := file.ReadAt(there[:], 1<<12+8+3)
	check(t, err)
	if !bytes.Equal(there[:], p.mr.Bytes()[:15]) || !bytes.Equal(there[:], p.mr.Bytes()[512:527]) {
		t.Errorf("the other device has %q, and %q came back", there, p.mr.Bytes()[512:527])
	}

	wantErr(t, "inline", p.a.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendInline}, mr.SGE(0, 8)), verbs.ErrUnsupported, "is a dma-buf")
	wantErr(t, "rereg", mr.Rereg(verbs.ReregAccess, nil, nil, everything), verbs.ErrUnsupported, "does not change")
	func() {
		defer func() {
			if r := recover(); r == nil {
				t.Error("a word of another device's memory was read")
			}
		}()
		mr.Load64(0)
	}()
	check(t, mr.Close())
	for what, c := range map[string]struct {
		fd, n        int
		offset, iova uint64
		access       verbs.Access
		part         string
	}{
		"no bytes":           {fd, 0, 0, 0, everything, "at least one"},
		"behind the end":     {fd, 2, 0, 1<<64 - 2, everything, "pass the end"},
		"zero based":         {fd, 8, 0, 0, everything | verbs.AccessZeroBased, "exclude each other"},
		"another place":      {fd, 8, 8, 1 << 40, everything, "different places of a page"},
		"no such descriptor": {-1, 8, 0, 0, everything, "is no dma-buf"},
		"access":             {fd, 8, 0, 0, verbs.AccessRemoteWrite, "ACCESS_LOCAL_WRITE"},
	} {
		_, err := p.pd.RegDmabuf(c.fd, c.offset, c.n, c.iova, c.access)
		wantErr(t, what, err, verbs.ErrInvalid, c.part)
	}
}
