//go:build amd64 || arm64

package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The toy's virtual files.
const (
	toyNode  = "/dev/infiniband/toy0"   // a pipe
	toyMem   = "/dev/infiniband/toymem" // a memfd
	toyClass = "/sys/class/infiniband"
	toyAttr  = toyClass + "/toy0/node_type"
	toyMajor = 231
)

// Requests of the toy.
const (
	toyID    = 0x0001_4201 // returns the number of the open file
	toyWait  = 0x0001_4202 // waits for toyWake on the same file, and returns what that gave
	toyWake  = 0x0001_4203
	toyTwice = 0x0001_4204 // doubles the 8 bytes at arg
	toyPID   = 0x0001_4205 // returns the TGID
	toySlow  = 0x0001_4206 // is handed on
	toyMute  = 0x0001_4207 // is never answered
	toyCount = 0x0001_4208 // returns how many calls wait on the file
	toyEnds  = 0x0001_4209 // returns how often calls were taken away on the file
	toyLater = 0x0001_420a // doubles the 8 bytes at arg after the answer, by the process
	toyMap   = 0x0001_420b // maps the memory that the two words at arg name, and returns its number; 0 where it cannot
	toyPeek  = 0x0001_420c // returns a byte of mapped memory: the words at arg are its number and an offset
	toyPoke  = 0x0001_420d // changes a byte: number, offset and value
	toyUnmap = 0x0001_420e // ends mapped memory
	toySweep = 0x0001_420f // looks twice for pages that nobody has, and returns how many KiB all files have
)

// TestMain is also what Run, its supervisor and reaper, and the tests' targets are.
func TestMain(m *testing.M) {
	Stage(serveToy)
	switch {
	case os.Args[0] == "starter":
		Run(Program{Path: os.Args[1], Args: os.Args[2:], Options: []string{os.Getenv("TOY_LOG")}}).report().Exit()
	case os.Args[0] == "target":
		target(os.Args[1], os.Args[2:])
		os.Exit(0)
	}
	if os.Getenv("GORACE") == "" { // else each process sleeps for a second at its end
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	code := m.Run()
	if exe, err := testBinary(); err == nil {
		os.RemoveAll(filepath.Dir(exe))
	}
	os.Exit(code)
}

func (s Status) report() Status {
	if s.err != nil {
		fmt.Fprintln(os.Stderr, "starter:", s.err)
	}
	return s
}

// toyLog is what the toy has to say, for the test. Each line is one write.
type toyLog struct{ f *os.File }

func (l toyLog) printf(format string, args ...any) {
	if l.f != nil {
		fmt.Fprintf(l.f, format+"\n", args...)
	}
}

func serveToy(s *Session) error {
	var log toyLog
	if name := s.Program.Options[0]; name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		log.f = f
	}
	tree, err := toyTree(log)
	if err != nil {
		return err
	}
	log.printf("tree %s", tree.root)
	log.printf("supervisor %d", os.Getpid())
	if os.Getenv("TOY_DENY") != "" {
		if err := denyPtrace(); err != nil {
			return err
		}
	}
	l, err := s.Start(Filter{
		NativeWrite: 32,
		Map:         true,
		Ioctls:      []uint32{toyID},
		Rules: []Rule{
			{Number: unix.SYS_SOCKET, If: []Arg{{0, ^uint32(0), unix.AF_NETLINK}, {2, ^uint32(0), unix.NETLINK_RDMA}}, Errno: unix.EPROTONOSUPPORT},
			{Number: unix.SYS_GETPRIORITY, If: []Arg{{0, 0xff, 77}}, Notify: true},
		},
	}, tree)
	if err != nil {
		return err
	}
	log.printf("reaper %d", s.pid)
	if name := os.Getenv("TOY_SHARE"); name != "" {
		shared, err := Share(name, serveGuest)
		if err == nil {
			s.Outlive(shared)
			log.printf("shares")
			err = serveTree(l, tree, log)
			s.Finish(shared, err)
			return err
		}
		if joined, err := s.Join(name, l, tree, s.Program.Options); joined {
			return err
		}
		log.printf("alone")
	}
	return serveTree(l, tree, log)
}

// serveGuest is serveToy for the target of another run.
func serveGuest(g Guest) error {
	var log toyLog
	f, err := os.OpenFile(g.Options[0], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	log.f = f
	log.printf("guest of %d", os.Getpid())
	if err := toyNodes(g.Tree, log); err != nil {
		return err
	}
	return serveTree(g.Listener, g.Tree, log)
}

func serveTree(l *Listener, tree *Tree, log toyLog) error {
	sup, err := New(l, Config{
		Tree:  tree,
		Map:   true,
		Other: func(c *Call) { c.Return(int64(c.Args[1]) + 1) },
		Logf:  func(format string, args ...any) { log.printf("log "+format, args...) },
	})
	if err != nil {
		return err
	}
	err = sup.Serve()
	log.printf("served %v", err)
	return err
}

func toyNodes(tree *Tree, log toyLog) error {
	toy := &toy{log: log}
	return errors.Join(tree.Node(toyNode, Node{Device: toy, Major: toyMajor, Minor: 192}),
		tree.Node(toyMem, Node{Device: memToy{toy}, Major: toyMajor, Minor: 193, NativeWrite: true, Anywhere: true}))
}

func toyTree(log toyLog) (*Tree, error) {
	tree, err := NewTree(toyClass, "/sys/class/infiniband_verbs", "/dev/infiniband")
	if err != nil {
		return nil, err
	}
	for _, err := range []error{
		tree.File(toyAttr, "1: CA\n"),
		tree.File("/sys/class/infiniband_verbs/abi_version", "6\n"),
		tree.File("/sys/class/infiniband_verbs/toy0/ibdev", "toy0\n"),
		tree.Link(toyClass+"/toy0/device", "../../infiniband_verbs/toy0"),
		tree.Link(toyClass+"/toy0/absolute", toyAttr),
		tree.Link(toyClass+"/toy0/subsystem", "../../../../proc/sys/kernel"),
		tree.Link(toyClass+"/toy0/loop", "loop"),
		tree.Dir(toyClass + "/toy0/ports"),
		toyNodes(tree, log),
	} {
		if err != nil {
			return nil, err
		}
	}
	return tree, nil
}

// toy is a device. Its files' descriptors are pipes, in which the program finds what it wrote.
type toy struct {
	log toyLog

	mu   sync.Mutex
	next int
}

type toyFile struct {
	toy *toy
	id  int
	w   int

	mu      sync.Mutex
	waiting []*Call
	ends    int
	mapped  map[int]*Mapped
}

func (d *toy) number() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.log.printf("open %d", d.next)
	return d.next
}

func (d *toy) Open(c *Call, flags int) (Opened, error) {
	if flags&unix.O_ACCMODE == unix.O_WRONLY {
		return Opened{}, unix.EPERM
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return Opened{}, err
	}
	if err := unix.SetNonblock(p[1], true); err != nil { // the thread that receives notifications must not wait
		return Opened{}, err
	}
	return Opened{File: &toyFile{toy: d, id: d.number(), w: p[1]}, FD: p[0], Watch: p[1]}, nil
}

// memToy is the toy with a memfd of a page.
type memToy struct{ *toy }

func (d memToy) Open(c *Call, flags int) (Opened, error) {
	fd, err := unix.MemfdCreate("toy", unix.MFD_CLOEXEC)
	if err != nil {
		return Opened{}, err
	}
	if err := unix.Ftruncate(fd, 4096); err != nil {
		return Opened{}, err
	}
	return Opened{File: &toyFile{toy: d.toy, id: d.number(), w: -1}, FD: fd, Watch: -1}, nil
}

func (f *toyFile) Read(c *Call, n uint64) {
	if f.w < 0 {
		c.Fail(unix.EINVAL)
		return
	}
	c.Continue() // the pipe has it
}

func (f *toyFile) Write(c *Call, b []byte) {
	switch {
	case bytes.HasPrefix(b, []byte("fail")):
		c.Fail(unix.EXDEV)
	case f.w < 0:
		c.Return(int64(len(b)))
	default:
		n, err := unix.Write(f.w, b)
		if err != nil {
			c.Fail(errnoOf(err, unix.EIO))
			return
		}
		c.Return(int64(n))
	}
}

func (f *toyFile) Ioctl(c *Call, request uint32, arg uint64) {
	switch request {
	case toyID:
		c.Return(int64(f.id))
	case toyPID:
		c.Return(int64(c.TGID()))
	case toyTwice:
		var b [8]byte
		if _, err := c.Read(arg, b[:]); err != nil {
			c.Fail(unix.EFAULT)
			return
		}
		binary.LittleEndian.PutUint64(b[:], 2*binary.LittleEndian.Uint64(b[:]))
		if _, err := c.Write(arg, b[:]); err != nil {
			c.Fail(unix.EFAULT)
			return
		}
		c.Return(0)
	case toyLater:
		p, err := c.Process()
		if err != nil {
			c.Fail(unix.ESRCH)
			return
		}
		c.Return(0)
		var b [8]byte
		if _, err := p.Read(arg, b[:]); err != nil {
			f.toy.log.printf("read later: %v", err)
		}
		binary.LittleEndian.PutUint64(b[:], 2*binary.LittleEndian.Uint64(b[:]))
		if _, err := p.Write(arg, b[:]); err != nil {
			f.toy.log.printf("write later: %v", err)
		}
	case toyMap, toyPeek, toyPoke, toyUnmap, toySweep:
		c.Go(func() { f.memory(c, request, arg) })
	case toySlow:
		c.Go(func() { c.Return(42) })
	case toyMute:
	case toyWait:
		if c.Nonblocking() {
			c.Fail(unix.EAGAIN)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		c.Wait(func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ends++
			f.waiting = slices.DeleteFunc(f.waiting, func(x *Call) bool { return x == c })
			f.toy.log.printf("gone %d", f.id)
		})
		f.waiting = append(f.waiting, c)
		f.toy.log.printf("waits %d", f.id)
	case toyCount, toyEnds:
		f.mu.Lock()
		n := len(f.waiting)
		if request == toyEnds {
			n = f.ends
		}
		f.mu.Unlock()
		c.Return(int64(n))
	case toyWake:
		f.mu.Lock()
		list := f.waiting
		f.waiting = nil
		f.mu.Unlock()
		n := int64(0)
		for _, w := range list {
			if w.Return(int64(arg)) {
				n++
			}
		}
		c.Return(n)
	default:
		c.Fail(unix.ENOTTY)
	}
}

// memory answers the requests for mapped memory.
func (f *toyFile) memory(c *Call, request uint32, arg uint64) {
	var b [24]byte
	if _, err := c.Read(arg, b[:]); err != nil {
		c.Fail(unix.EFAULT)
		return
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if request == toyMap {
		m, err := c.Map(word(0), word(1), word(2) == 0)
		switch err {
		case nil:
		case ErrAgain:
			return
		default:
			f.toy.log.printf("not mapped: %v", err)
			c.Return(0)
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.mapped == nil {
			f.mapped = map[int]*Mapped{}
		}
		n := 1
		for f.mapped[n] != nil {
			n++
		}
		f.mapped[n] = m
		c.Return(int64(n))
		return
	}
	if request == toySweep {
		c.s.replaced.sweepNow()
		c.s.replaced.sweepNow()
		blocks := int64(0)
		c.s.replaced.mu.Lock()
		for _, f := range c.s.replaced.files {
			var st unix.Stat_t
			unix.Fstat(f.fd, &st)
			blocks += st.Blocks
		}
		c.s.replaced.mu.Unlock()
		c.Return(blocks / 2)
		return
	}
	f.mu.Lock()
	m := f.mapped[int(word(0))]
	if request == toyUnmap {
		delete(f.mapped, int(word(0)))
	}
	f.mu.Unlock()
	if m == nil {
		c.Fail(unix.ENOENT)
		return
	}
	if request == toyUnmap {
		m.Close()
		c.Return(0)
		return
	}
	place := m.Offset + int64(word(1))
	page, err := unix.Mmap(m.FD, place&^(pageSize-1), pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.Fail(errnoOf(err, unix.EIO))
		return
	}
	defer unix.Munmap(page)
	at := &page[place%pageSize]
	if request == toyPoke {
		*at = byte(word(2))
	}
	c.Return(int64(*at))
}

func (f *toyFile) Released() {
	f.mu.Lock()
	for _, m := range f.mapped {
		m.Close()
	}
	f.mu.Unlock()

	if f.w >= 0 {
		unix.Close(f.w)
	}
	f.toy.log.printf("released %d", f.id)
}

// denyPtrace does to this process what container runtimes do: no look into other processes by these calls.
func denyPtrace() error {
	var p program
	p.load(dataNumber)
	for _, number := range []uint32{unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_GETFD, unix.SYS_KCMP} {
		p.when(unix.BPF_JEQ, number, func(b *program) { b.ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)) })
	}
	allow(&p)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
