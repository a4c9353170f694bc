//go:build !adverb_portable

package mem

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// RegFileMR implements verbs.ProviderFileMR. A file that cannot shrink is like memory of an allocation: it stays, and is lent.
// Any other may lose its pages, so accesses are guarded.
func (p *PD) RegFileMR(attr verbs.MRAttr, fd int, off int64) (verbs.ProviderMR, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	sealed := err == nil && seals&unix.F_SEAL_SHRINK != 0
	if sealed {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "look at the file: %w", err)
		}
		if off > st.Size || int64(attr.Length) > st.Size-off {
			return nil, verbs.Errorf(verbs.ErrInvalid, "%d bytes at offset %d of a file of %d bytes", attr.Length, off, st.Size)
		}
	}
	at := int(off % int64(pageSize))
	if attr.Length > math.MaxInt-at {
		return nil, verbs.Errorf(verbs.ErrLimit, "the address space ends before %d bytes", attr.Length)
	}
	rights := unix.PROT_READ
	if attr.Access&changes != 0 {
		rights |= unix.PROT_WRITE
	}
	all, err := unix.Mmap(fd, off-int64(at), at+attr.Length, rights, unix.MAP_SHARED)
	switch {
	case errors.Is(err, unix.ENOMEM):
		return nil, verbs.Errorf(verbs.ErrLimit, "map %d bytes of the file: %w", attr.Length, err)
	case err != nil:
		return nil, verbs.Errorf(verbs.ErrInvalid, "map %d bytes of the file: %w", attr.Length, err)
	}
	r := &Region{buf: all[at:len(all):len(all)], guard: !sealed, backing: backing{unmap: func() error { return unix.Munmap(all) }}}
	if sealed {
		r.lent = &File{ID: files.Add(1), FD: fd, Off: off, Size: int64(attr.Length)}
	}
	return p.addOutside(attr, r)
}
