//go:build amd64 || arm64

package supervisor

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Device is behind a node of the tree.
type Device interface {
	// Open answers an open(2) of the node, whose flags it gets. It runs in a goroutine of its own. An error that is no Errno
	// becomes EIO.
	Open(c *Call, flags int) (Opened, error)
}

// Opened is an open file of a device.
type Opened struct {
	File File
	// FD is the descriptor that the program gets a copy of. Each open file has its own inode: a memfd, or a new pipe's read
	// end. The supervisor takes it over.
	FD int
	// Watch tells when the program's last copy is gone: it polls POLLERR or POLLHUP then, as a pipe's write end does. It stays
	// the device's, which closes it after Released. It is -1 where FD is a memfd: the program gets a new open file
	// description of it, and the last descriptor or mapping of that is the last copy.
	Watch int
}

// A File answers the calls on an open file. Each method is called by the thread that receives notifications, so that
// others wait meanwhile: see Call.Go and Call.Wait.
type File interface {
	// Read answers read(2) of n bytes, to c.Args[1].
	Read(c *Call, n uint64)
	// Write answers write(2) of b, which is valid until Write returns, and has maxWrite bytes at most. A writev(2) is a write
	// of its first part.
	Write(c *Call, b []byte)
	// Ioctl answers ioctl(2), but for the requests that the kernel answers for all files.
	Ioctl(c *Call, request uint32, arg uint64)
	// Released is called once, when the last descriptor and mapping in any process is gone.
	Released()
}

// maxWrite is how much of a write a device gets.
const maxWrite = 1 << 16

// inode identifies an open file, in whatever process and under whatever number.
type inode struct{ dev, ino uint64 }

type openFile struct {
	File
	node  *node
	key   inode
	fd    int // a memfd, or -1
	watch int // a descriptor of the device, or -1
}

// descriptors are the open files of devices. Which one a number means is asked of /proc/TID/fd for each call: so no close,
// dup2, exec or fork can pass unseen, and close needs no notification.
type descriptors struct {
	s       *Supervisor
	epoll   int
	inotify int
	stop    int
	done    chan struct{}
	buf     [maxWrite]byte // of the receiving thread

	placing sync.Mutex // held from the choice of a number to its injection

	mu      sync.Mutex
	files   map[inode]*openFile
	watches map[int32]*openFile // by inotify's number
	closed  bool
}

func newDescriptors(s *Supervisor) (*descriptors, error) {
	t := &descriptors{s: s, epoll: -1, inotify: -1, stop: -1, done: make(chan struct{}), files: map[inode]*openFile{}, watches: map[int32]*openFile{}}
	var err error
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if t.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		unix.Close(t.epoll)
		return nil, fmt.Errorf("watch for closed descriptors: inotify_init1: %w: raise fs.inotify.max_user_instances", err)
	}
	if t.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		if err = t.poll(t.inotify, unix.EPOLLIN); err == nil {
			err = t.poll(t.stop, unix.EPOLLIN)
		}
	}
	if err != nil {
		unix.Close(t.epoll)
		unix.Close(t.inotify)
		return nil, fmt.Errorf("watch for closed descriptors: %w", err)
	}
	return t, nil
}

func (t *descriptors) poll(fd int, events uint32) error {
	return unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// find is the open file that a number means in the thread's table, or nil.
func (t *descriptors) find(c *Call, fd uint32) *openFile {
	// As c.fdPath and unix.Stat, without memory from the heap.
	var path [48]byte
	b := append(strconv.AppendInt(append(path[:0], "/proc/"...), int64(c.TID), 10), "/fd/"...)
	b = append(strconv.AppendUint(b, uint64(fd), 10), 0)
	at := unix.AT_FDCWD
	var st unix.Stat_t
	if _, _, e := unix.Syscall6(fstatat, uintptr(at), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&st)), 0, 0, 0); e != 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[inode{st.Dev, st.Ino}]
}

// answer answers a call whose first argument is a descriptor.
func (t *descriptors) answer(c *Call, o op) {
	f := t.find(c, uint32(c.Args[0]))
	if f == nil {
		c.Continue() // a file of the program's own on a number of the range
		return
	}
	switch o {
	case opRead:
		f.Read(c, c.Args[2])
	case opReadv:
		if base, n, ok := c.firstPart(); ok {
			c.setBuffer(base)
			f.Read(c, n)
		}
	case opWrite:
		t.write(c, f, c.Args[1], c.Args[2])
	case opWritev:
		if base, n, ok := c.firstPart(); ok {
			t.write(c, f, base, n)
		}
	case opSeek:
		c.Fail(unix.ESPIPE)
	case opIoctl:
		switch request := uint32(c.Args[1]); request {
		case fioNBIO, fioCLEX, fioNCLEX, fioASYNC:
			c.Continue()
		default:
			f.Ioctl(c, request, c.Args[2])
		}
	case opFstat:
		f.node.stat(c, c.Args[1])
	case opDup:
		t.dup(c, f, 0, false)
	case opFcntl:
		t.dup(c, f, c.Args[2], uint32(c.Args[1]) == unix.F_DUPFD_CLOEXEC)
	case opDup2, opDup3:
		to := int64(int32(c.Args[1]))
		if inside := to >= int64(t.s.l.Base) && to < int64(t.s.l.Base+rangeSize); to >= 0 && !inside && !f.node.Anywhere {
			t.s.logf("dup2 of %s to %d: the supervisor answers for descriptors %d to %d only", f.node.path, to, t.s.l.Base, t.s.l.Base+rangeSize-1)
			c.Fail(unix.EMFILE)
			return
		}
		c.Continue()
	default:
		c.Continue()
	}
}

func (t *descriptors) write(c *Call, f *openFile, addr, n uint64) {
	b := t.buf[:min(n, maxWrite)]
	if _, err := c.Read(addr, b); err != nil {
		c.Fail(errnoOf(err, unix.EFAULT))
		return
	}
	f.Write(c, b)
}

// The kernel answers these requests for all files: asm-generic/ioctls.h.
const (
	fioNBIO  = 0x5421
	fioNCLEX = 0x5450
	fioCLEX  = 0x5451
	fioASYNC = 0x5452
)

// mostParts is IOV_MAX.
const mostParts = 1024

// firstPart finds the first part of a vector that is not empty. A call on that part alone is a short read or write. If there is
// none it answers the call.
func (c *Call) firstPart() (base, n uint64, ok bool) {
	if c.Args[2] > mostParts {
		c.Fail(unix.EINVAL)
		return 0, 0, false
	}
	for i := range c.Args[2] {
		var b [16]byte
		if _, err := c.Read(c.Args[1]+16*i, b[:]); err != nil {
			c.Fail(errnoOf(err, unix.EFAULT))
			return 0, 0, false
		}
		base, n = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
		if n != 0 {
			return base, n, true
		}
	}
	c.Return(0)
	return 0, 0, false
}

// errnoOf is the Errno of an error, or another where it is none.
func errnoOf(err error, other unix.Errno) unix.Errno {
	if e, ok := err.(unix.Errno); ok && e != 0 {
		return e
	}
	return other
}

// open answers an open(2) of a node.
func (t *descriptors) open(c *Call, n *node, flags int) {
	c.Go(func() {
		o, err := n.Device.Open(c, flags)
		if err != nil {
			if _, ok := err.(unix.Errno); !ok {
				t.s.logf("open %s: %v", n.path, err)
			}
			c.Fail(errnoOf(err, unix.EIO))
			return
		}
		f, fd, err := t.add(n, o, flags)
		if err != nil {
			t.s.logf("open %s: %v", n.path, err)
			unix.Close(o.FD)
			o.File.Released()
			c.Fail(errnoOf(err, unix.ENFILE))
			return
		}
		placed := t.place(c, n, fd, 0, flags&unix.O_CLOEXEC != 0)
		unix.Close(fd)
		if !placed { // so nobody has it
			t.check(f)
		}
	})
}

// add takes note of an open file. The descriptor that it returns is the one to inject.
func (t *descriptors) add(n *node, o Opened, flags int) (f *openFile, fd int, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(o.FD, &st); err != nil {
		return nil, -1, err
	}
	f = &openFile{File: o.File, node: n, key: inode{st.Dev, st.Ino}, fd: -1, watch: -1}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.files[f.key] != nil {
		return nil, -1, unix.EBUSY
	}
	if o.Watch >= 0 {
		err := unix.SetNonblock(o.FD, flags&unix.O_NONBLOCK != 0)
		if err == nil {
			err = t.poll(o.Watch, 0)
		}
		if err != nil {
			return nil, -1, err
		}
		f.watch = o.Watch
		t.files[f.key] = f
		return f, o.FD, nil
	}
	link := selfFD(o.FD)
	if fd, err = reopen(link, unix.O_RDWR|flags&unix.O_NONBLOCK); err != nil {
		return nil, -1, err
	}
	wd, err := unix.InotifyAddWatch(t.inotify, link, unix.IN_CLOSE_WRITE)
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	f.fd = o.FD
	t.files[f.key] = f
	t.watches[int32(wd)] = f
	return f, fd, nil
}

func selfFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// reopen makes a new open file description of a file, and marks it by a lock of its own, so that another one can tell
// whether it is still there: see left.
func reopen(link string, flags int) (int, error) {
	fd, err := unix.Open(link, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	l := unix.Flock_t{Type: unix.F_RDLCK, Whence: unix.SEEK_SET, Start: lockAt, Len: 1}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// lockAt is the byte that is locked: the last one that there can be.
const lockAt = 1<<63 - 2

// left reports whether an open file description that reopen made is left.
func (f *openFile) left() bool {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: lockAt, Len: 1}
	err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &l)
	return err != nil || l.Type != unix.F_UNLCK
}

// place injects fd at a free number of the range, from the top down: where a program has very many open files, the kernel
// takes the lowest numbers first.
func (t *descriptors) place(c *Call, n *node, fd int, atLeast uint64, cloexec bool) bool {
	from, to := t.s.l.Base+nativeSize, t.s.l.Base+rangeSize
	if n.NativeWrite {
		from, to = t.s.l.Base, from
	}
	t.placing.Lock()
	defer t.placing.Unlock()
	for number := to - 1; number >= from && uint64(number) >= atLeast; number-- {
		var st unix.Stat_t
		switch err := unix.Lstat(c.fdPath(uint32(number)), &st); err {
		case nil:
		case unix.ENOENT:
			_, err := c.Inject(fd, cloexec, number, true)
			if err != nil && err != errGone {
				c.Fail(errnoOf(err, unix.EMFILE))
			}
			return err == nil
		default:
			c.Fail(errnoOf(err, unix.EMFILE))
			return false
		}
	}
	t.s.logf("open or dup %s: descriptors %d to %d are all in use", n.path, from, to-1)
	c.Fail(unix.EMFILE)
	return false
}

// dup answers dup and F_DUPFD: the copy must be in the range.
func (t *descriptors) dup(c *Call, f *openFile, atLeast uint64, cloexec bool) {
	if int64(atLeast) < 0 || atLeast > 1<<31-1 {
		c.Fail(unix.EINVAL)
		return
	}
	fd, err := t.copy(c, f)
	if err != nil {
		c.Fail(errnoOf(err, unix.EBADF))
		return
	}
	t.place(c, f.node, fd, atLeast, cloexec)
	unix.Close(fd)
}

// copy gets a copy of the descriptor in the first argument. Where pidfd_getfd is forbidden it is a new open file
// description, which does not share O_NONBLOCK with the old one.
func (t *descriptors) copy(c *Call, f *openFile) (int, error) {
	number := uint32(c.Args[0])
	p, err := c.Process()
	if err != nil {
		return -1, err
	}
	fd, err := p.copyFD(number)
	if err == nil {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && f.key == (inode{st.Dev, st.Ino}) {
			return fd, nil
		}
		unix.Close(fd) // of a process whose threads have tables of their own
	}
	flags, err := c.openFlags(number)
	if err != nil {
		return -1, unix.EBADF
	}
	flags &= unix.O_ACCMODE | unix.O_NONBLOCK
	if f.fd >= 0 {
		return reopen(c.fdPath(number), flags)
	}
	return unix.Open(c.fdPath(number), flags|unix.O_CLOEXEC, 0)
}

// watch waits for the last copies of open files to go.
func (t *descriptors) watch() {
	defer close(t.done)
	events := make([]unix.EpollEvent, 32)
	for {
		n, err := unix.EpollWait(t.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			t.s.logf("watch for closed descriptors: epoll_wait: %v", err)
			return
		}
		for _, e := range events[:max(n, 0)] {
			switch int(e.Fd) {
			case t.stop:
				return
			case t.inotify:
				t.inotified()
			default:
				t.release(t.watchedBy(int(e.Fd)))
			}
		}
	}
}

func (t *descriptors) watchedBy(fd int) *openFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		if f.watch == fd {
			return f
		}
	}
	return nil
}

func (t *descriptors) inotified() {
	var buf [4096]byte
	n, err := unix.Read(t.inotify, buf[:])
	if err != nil {
		return
	}
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		b = b[min(len(b), unix.SizeofInotifyEvent+int(e.Len)):]
		t.mu.Lock()
		all := []*openFile{t.watches[e.Wd]}
		if e.Mask&unix.IN_Q_OVERFLOW != 0 { // whichever it was
			all = all[:0]
			for _, f := range t.files {
				all = append(all, f)
			}
		}
		t.mu.Unlock()
		for _, f := range all {
			if f != nil {
				t.check(f)
			}
		}
	}
}

// lockDelays are when a file is looked at after a close: the kernel tells of the close a moment before it removes the
// lock.
var lockDelays = []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// check releases a file if nobody has it.
func (t *descriptors) check(f *openFile) {
	if f.fd < 0 {
		return // epoll tells
	}
	t.checkAfter(f, lockDelays)
}

func (t *descriptors) checkAfter(f *openFile, delays []time.Duration) {
	t.mu.Lock()
	known := t.files[f.key] == f
	left := known && f.left()
	t.mu.Unlock()
	switch {
	case !known:
	case !left:
		t.release(f)
	case len(delays) > 1:
		time.AfterFunc(delays[1], func() { t.checkAfter(f, delays[1:]) })
	}
}

// release forgets a file, and tells it.
func (t *descriptors) release(f *openFile) {
	if f == nil {
		return
	}
	t.mu.Lock()
	known := t.files[f.key] == f
	delete(t.files, f.key)
	for wd, x := range t.watches {
		if x == f {
			delete(t.watches, wd)
			unix.InotifyRmWatch(t.inotify, uint32(wd))
		}
	}
	if known && f.watch >= 0 {
		unix.EpollCtl(t.epoll, unix.EPOLL_CTL_DEL, f.watch, nil)
	}
	if known && f.fd >= 0 {
		unix.Close(f.fd)
	}
	t.mu.Unlock()
	if known {
		f.Released()
	}
}

// close releases all files: the target has ended.
func (t *descriptors) close() {
	unix.Write(t.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-t.done
	t.mu.Lock()
	t.closed = true
	var all []*openFile
	for _, f := range t.files {
		all = append(all, f)
	}
	t.mu.Unlock()
	for _, f := range all {
		t.release(f)
	}
	unix.Close(t.epoll)
	unix.Close(t.inotify)
	unix.Close(t.stop)
}
