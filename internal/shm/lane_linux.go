//go:build !adverb_portable

package shm

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bell wakes a process that sleeps: an eventfd.
type Bell struct{ fd int } // plus 1, so that the zero Bell has no descriptor

// NewBell makes a bell of a descriptor that another process has handed over, and owns the descriptor from then on. It
// fails, and closes the descriptor, if ringing could block.
func NewBell(fd int) (Bell, error) {
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
		unix.Close(fd)
		return Bell{}, errBell
	}
	return Bell{fd + 1}, nil
}

var errBell = errors.New("the descriptor is no bell's")

// Ring wakes a goroutine that waits for the bell, now or later.
func (b Bell) Ring() {
	if b.fd > 0 {
		one := [8]byte{1} // any number but 0 will do, so its byte order does not matter
		_, _ = unix.Write(b.fd-1, one[:])
	}
}

// Silence ends the ringing.
func (b Bell) Silence() {
	if b.fd > 0 {
		var n [8]byte
		_, _ = unix.Read(b.fd-1, n[:])
	}
}

// Close closes the descriptor.
func (b *Bell) Close() {
	if b.fd > 0 {
		unix.Close(b.fd - 1)
		b.fd = 0
	}
}

// Bell returns the descriptor that becomes readable when another end rings. The inbox keeps it.
func (b *Inbox) Bell() (fd int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return -1, unix.EBADF
	}
	if b.bell.fd == 0 {
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			return -1, fmt.Errorf("eventfd: %w", err)
		}
		b.bell.fd = fd + 1
		b.rings.Store(true)
	}
	return b.bell.fd - 1, nil
}

// ShareBell returns a descriptor of the bell for another process. The caller closes it.
func (b *Inbox) ShareBell() (fd int, err error) {
	if _, err := b.Bell(); err != nil {
		return -1, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return -1, unix.EBADF
	}
	fd, err = unix.FcntlInt(uintptr(b.bell.fd-1), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate the bell: %w", err)
	}
	return fd, nil
}

const laneSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NewOut makes a lane. The caller hands the descriptor of the lane's memory to the receiver and then closes it, and
// sets the bell that the receiver returns.
func NewOut() (o *Out, fd int, err error) {
	fd, err = unix.MemfdCreate("adverb-lane", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, fmt.Errorf("memfd_create: %w", err)
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur < FileSize { // a signal would end the process
		err = unix.EFBIG
	} else if err = unix.Ftruncate(fd, FileSize); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, laneSeals)
	}
	var r ring
	if err == nil {
		r, err = mapRing(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, -1, fmt.Errorf("memory for a lane: %w", err)
	}
	return &Out{ring: r}, fd, nil
}

// Connect gives a lane the receiver's bell, before its first use. hangup ends the connection to the receiver. tell
// tells the receiver of a file that the sender lends, or has withdrawn, and ask asks the receiver for access to a
// region. Neither blocks. Without them the lane lends nothing, or has no access.
func (o *Out) Connect(b Bell, hangup func(), tell func(f File, withdrawn bool) error, ask func(Ask) error) {
	o.bell, o.hangup, o.tell, o.ask = b, hangup, tell, ask
}

var errLane = errors.New("the memory is no lane's")

// Add adds the lane whose memory a sender at an address has handed over with its bell, unless there are limit lanes.
// The caller closes the descriptor and, after an error, the bell. hangup ends the connection to the sender, and is
// called at the latest when the memory is unmapped. say tells the sender of a grant, or of its end. It does not
// block. Without say nothing is granted.
func (b *Inbox) Add(fd int, bell Bell, from netip.Addr, limit int, hangup func(), say func(g Granted, revoked bool) error) (*In, error) {
	// A file that can shrink would kill its readers.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	var st unix.Stat_t
	if err != nil || seals&laneSeals != laneSeals || unix.Fstat(fd, &st) != nil || st.Size != FileSize {
		return nil, errLane
	}
	r, err := mapRing(fd)
	if err != nil {
		return nil, err
	}
	i := &In{ring: r, box: b, from: from, bell: bell, hangup: hangup}
	i.grants.say = say
	if !b.add(i, limit) {
		r.unmap()
		return nil, unix.EMFILE
	}
	return i, nil
}

var errFile = errors.New("the file can shrink, or is shorter")

// Map maps a file that the sender lends, to be read. The caller closes the descriptor.
func (i *In) Map(f File) error {
	m := &i.files
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.room(f.ID, f.Size); err != nil {
		return err
	}
	b, unmap, err := mapFile(f, false)
	if err != nil {
		return err
	}
	if m.open == nil {
		m.open = map[uint64]mappedFile{}
	}
	m.open[f.ID] = mappedFile{b, unmap}
	m.size += f.Size
	return nil
}

// mapFile maps memory in a file of the other end. A file that can shrink would kill its users.
func mapFile(f File, write bool) (b []byte, unmap func(), err error) {
	seals, err := unix.FcntlInt(uintptr(f.FD), unix.F_GET_SEALS, 0)
	var st unix.Stat_t
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || unix.Fstat(f.FD, &st) != nil || f.Off < 0 || f.Off > st.Size ||
		f.Size > st.Size-f.Off || uint64(f.Size) > math.MaxInt/2 { // a process of 32 bits cannot map so much, nor express its size
		return nil, nil, errFile
	}
	at := f.Off % int64(os.Getpagesize())
	access := unix.PROT_READ
	if write {
		access |= unix.PROT_WRITE
	}
	all, err := unix.Mmap(f.FD, f.Off-at, int(at+f.Size), access, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap: %w", err)
	}
	return all[at:], func() { _ = unix.Munmap(all) }, nil
}

// mapRing maps the header, and the records twice behind it.
func mapRing(fd int) (ring, error) {
	const size = headerSize + 2*ringBytes
	all, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return ring{}, fmt.Errorf("mmap: %w", err)
	}
	over := func(at, n int, off int64) {
		if err == nil {
			_, err = unix.MmapPtr(fd, off, unsafe.Pointer(&all[at]), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		}
	}
	over(0, headerSize+ringBytes, 0)
	over(headerSize+ringBytes, ringBytes, headerSize)
	if err != nil {
		_ = unix.Munmap(all)
		return ring{}, fmt.Errorf("mmap: %w", err)
	}
	// A kernel that cannot do that makes the pages at their first use.
	_ = unix.Madvise(all[:os.Getpagesize()], unix.MADV_POPULATE_WRITE)
	_ = unix.Madvise(all[headerSize:][:hotBytes], unix.MADV_POPULATE_WRITE)
	return newRing(all[:headerSize], all[headerSize:], func() { _ = unix.Munmap(all) }), nil
}
