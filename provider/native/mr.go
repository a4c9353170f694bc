//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// mr is a memory region.
type mr struct {
	d    *device
	r    ibv.Ref[ibv.MR]
	mem  *memory
	addr uint64 // by which SGEs and peers name the first byte
}

// memory is the memory of a region: the program's, which is pinned, memory of our own, or a file.
type memory struct {
	bytes []byte
	own   *mapping
	file  []byte // a mapping of the program's file
	pin   runtime.Pinner
}

// pinned are the memories that the program has registered. The device reaches them whether or not the program still
// knows of the region, so they stay pinned until Close.
var pinned sync.Map

func memoryFor(a *verbs.MRAttr) (*memory, error) {
	if a.Buf != nil {
		m := &memory{bytes: a.Buf}
		m.pin.Pin(unsafe.SliceData(a.Buf))
		pinned.Store(m, nil)
		return m, nil
	}
	own, err := allocate(a.Length, a.Access&verbs.AccessHugeTLB != 0)
	if err != nil {
		return nil, err
	}
	return &memory{bytes: own.bytes[:a.Length:a.Length], own: own}, nil
}

// free lets go of memory that no device reaches any more.
func (m *memory) free() {
	if m.own != nil {
		m.own.free()
		return
	}
	if m.file != nil {
		_ = syscall.Munmap(m.file) // which fails for no mapping of ours
		return
	}
	m.pin.Unpin()
	pinned.Delete(m)
}

// addrOf is the address of a region's first byte.
func (m *memory) addrOf(a *verbs.MRAttr) uint64 {
	switch {
	case a.HasIOVA:
		return a.IOVA
	case a.Access&verbs.AccessZeroBased != 0:
		return 0
	}
	return ibv.Base(m.bytes)
}

// RegMR implements verbs.ProviderPD. An address of the program's choice goes by iova. So does 0, the address of a zero-based
// region: libibverbs of rdma-core 33 takes IBV_ACCESS_ZERO_BASED for windows alone.
func (p *pd) RegMR(a verbs.MRAttr) (verbs.ProviderMR, error) {
	mem, err := memoryFor(&a)
	if err != nil {
		return nil, err
	}
	return p.register(mem, &a)
}

// register registers memory, and frees it where that fails.
func (p *pd) register(mem *memory, a *verbs.MRAttr) (_ verbs.ProviderMR, err error) {
	m := &mr{d: p.d, mem: mem, addr: mem.addrOf(a)}
	if m.r, err = p.d.lib.RegMR(p.r, mem.bytes, m.addr, accessOf(a.Access)); err != nil {
		mem.free()
		return nil, m.regFault(err, a.Access)
	}
	p.d.mrs.put(m.r.P().LKey, m)
	return m, nil
}

// RegFileMR implements verbs.ProviderFileMR. A file of persistent memory is mapped so that what is flushed stays in it (MAP_SYNC).
func (p *pd) RegFileMR(a verbs.MRAttr, fd int, off int64) (verbs.ProviderMR, error) {
	prot := syscall.PROT_READ
	if a.Access&verbs.AccessLocalWrite != 0 {
		prot |= syscall.PROT_WRITE
	}
	in := int(off % int64(syscall.Getpagesize()))
	if in+a.Length < a.Length {
		return nil, verbs.Errorf(verbs.ErrLimit, "%d bytes pass the end of the address space", a.Length)
	}
	file, err := []byte(nil), error(syscall.EOPNOTSUPP)
	if a.Access&verbs.AccessFlushPersistent != 0 {
		file, err = syscall.Mmap(fd, off-int64(in), in+a.Length, prot, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	}
	if err != nil {
		file, err = syscall.Mmap(fd, off-int64(in), in+a.Length, prot, syscall.MAP_SHARED)
	}
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, "map %d bytes of descriptor %d from %d on: %w", a.Length, fd, off, err)
	}
	return p.register(&memory{bytes: file[in : in+a.Length : in+a.Length], file: file}, &a)
}

// RegDmabuf implements verbs.ProviderDmabuf.
func (p *pd) RegDmabuf(a verbs.MRAttr, fd int, offset uint64) (verbs.ProviderMR, error) {
	r, err := p.d.lib.RegDmabufMR(p.r, fd, offset, a.Length, a.IOVA, accessOf(a.Access))
	page := uint64(syscall.Getpagesize())
	switch {
	case errors.Is(err, syscall.EINVAL) && offset%page != a.IOVA%page:
		return nil, verbs.Errorf(verbs.ErrInvalid, "%w: offset %#x and address %#x lie at different places of a page: the kernel wants the same", err, offset, a.IOVA)
	case errors.Is(err, syscall.EBADF):
		return nil, verbs.Errorf(verbs.ErrInvalid, "%w: descriptor %d is no dma-buf", err, fd)
	case err != nil:
		return nil, fault(err)
	}
	m := &mr{d: p.d, r: r, mem: &memory{}, addr: a.IOVA}
	p.d.mrs.put(r.P().LKey, m)
	return m, nil
}

// accessOf are the access flags as C has them. Huge pages are the kernel's business where it pages on demand; otherwise it
// pins what is there, and drivers such as rxe refuse the flag.
func accessOf(a verbs.Access) uint32 {
	a &^= verbs.AccessZeroBased
	if a&verbs.AccessOnDemand == 0 {
		a &^= verbs.AccessHugeTLB
	}
	return uint32(a)
}

// regFault says why a region with access is refused.
func (m *mr) regFault(err error, access verbs.Access) error {
	page := uint64(syscall.Getpagesize())
	if base := ibv.Base(m.mem.bytes); errors.Is(err, syscall.EINVAL) && base%page != m.addr%page {
		return verbs.Errorf(verbs.ErrInvalid, "%w: the first byte lies %d bytes into a page, and its address there, %#x, %d: the kernel wants the same",
			err, base%page, m.addr, m.addr%page)
	}
	if errors.Is(err, syscall.EINVAL) && access&verbs.AccessFlushPersistent != 0 {
		return verbs.Errorf(verbs.ErrInvalid, "%w: drivers take ACCESS_FLUSH_PERSISTENT for persistent memory alone: is the file in a file system that is mounted with dax, on a pmem device?", err)
	}
	if errors.Is(err, syscall.EFAULT) {
		return verbs.Errorf(verbs.ErrInvalid, "%w: the memory from %#x on cannot be read or, with ACCESS_LOCAL_WRITE, written", err, ibv.Base(m.mem.bytes))
	}
	return lockFault(err, len(m.mem.bytes))
}

// bytesOf returns the memory that an SGE names, for a copy during the post of an operation.
func (d *device) bytesOf(s *verbs.SGE, op verbs.Opcode) ([]byte, error) {
	what := "inline data of an SGE"
	if op == verbs.OpAtomicWrite {
		what = "the word of an ATOMIC WRITE, which libibverbs copies at the post"
	}
	m := d.mrs.get(uint32(s.LKey))
	if m == nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, "%s: no region has lkey %v", what, s.LKey)
	}
	if m.mem.bytes == nil {
		return nil, verbs.Errorf(verbs.ErrUnsupported, "%s: the region of lkey %v is a dma-buf, which the processor does not reach", what, s.LKey)
	}
	off := s.Addr - m.addr
	if n := uint64(len(m.mem.bytes)); off > n || uint64(s.Length) > n-off {
		return nil, verbs.Errorf(verbs.ErrInvalid, "%s: %d bytes from %#x on are not in the region of lkey %v", what, s.Length, s.Addr, s.LKey)
	}
	return m.mem.bytes[off : off+uint64(s.Length)], nil
}

// Bytes, Addr, LKey and RKey implement verbs.ProviderMR.
func (m *mr) Bytes() []byte    { return m.mem.bytes }
func (m *mr) Addr() uint64     { return m.addr }
func (m *mr) LKey() verbs.LKey { return verbs.LKey(m.r.P().LKey) }
func (m *mr) RKey() verbs.RKey { return verbs.RKey(m.r.P().RKey) }

// Rereg implements verbs.ProviderMR.
func (m *mr) Rereg(flags verbs.ReregFlags, p verbs.ProviderPD, a verbs.MRAttr) error {
	mem := m.mem
	if mem.bytes == nil {
		return verbs.Errorf(verbs.ErrUnsupported, "a region of a dma-buf does not change: close it, and register another")
	}
	var ( // values that flags do not name are zero: libibverbs refuses others
		buf    []byte
		access uint32
		to     ibv.Ref[ibv.PD]
	)
	if flags&verbs.ReregTranslation != 0 {
		var err error
		if mem, err = memoryFor(&verbs.MRAttr{Buf: a.Buf}); err != nil {
			return err
		}
		buf = mem.bytes
	}
	if flags&verbs.ReregAccess != 0 {
		access = accessOf(a.Access)
	}
	if flags&verbs.ReregPD != 0 {
		to = p.(*pd).r
	}
	m.d.mrs.remove(m.r.P().LKey)
	defer func() { m.d.mrs.put(m.r.P().LKey, m) }() // which may be another key
	intact, err := m.d.lib.ReregMR(m.r, int(flags), to, buf, access)
	if err != nil {
		if mem != m.mem {
			mem.free()
		}
		err = lockFault(err, len(mem.bytes))
		if !intact && (errors.Is(err, verbs.ErrInvalid) || errors.Is(err, verbs.ErrLimit) || errors.Is(err, verbs.ErrUnsupported)) {
			return &ruined{err}
		}
		return err
	}
	if mem != m.mem {
		m.mem.free()
		m.mem, m.addr = mem, ibv.Base(mem.bytes)
	}
	return nil
}

// ruined is the failure of a change behind which the region may only be closed. So it has none of the kinds that say
// that the region is as it was.
type ruined struct{ err error }

func (e *ruined) Error() string { return e.err.Error() + ": the region may only be closed now" }

// Unwrap returns the errno.
func (e *ruined) Unwrap() error {
	if errno, ok := errors.AsType[syscall.Errno](e.err); ok {
		return errno
	}
	return nil
}

// Close implements verbs.ProviderMR.
func (m *mr) Close() error {
	key := m.r.P().LKey
	m.d.mrs.remove(key)
	if err := m.d.lib.DeregMR(m.r); err != nil {
		if m.d.destroyed(err) == nil {
			m.d.left.add(m.mem)
			return nil
		}
		m.d.mrs.put(key, m)
		if errors.Is(err, syscall.EINVAL) { // some providers say that of a region with windows
			return verbs.Errorf(verbs.ErrBusy, "%w: is a window bound to it?", err)
		}
		return fault(err)
	}
	m.mem.free()
	return nil
}
