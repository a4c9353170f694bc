//go:build amd64 || arm64

package supervisor

import (
	"os"

	"golang.org/x/sys/unix"
)

// What package unix lacks.
const (
	resolveCached = 0x20   // RESOLVE_CACHED
	statxSyncType = 0x6000 // AT_STATX_SYNC_TYPE
)

// answerPath answers a call that names a path.
func (s *Supervisor) answerPath(c *Call, o op) {
	a := &c.Args
	at := lookup{dirfd: unix.AT_FDCWD}
	under := lookup{dirfd: int32(a[0])}
	switch o {
	case opOpen:
		s.open(c, a[0], at, a[1])
	case opCreat:
		s.open(c, a[0], at, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC)
	case opOpenat:
		s.open(c, a[1], under, a[2])
	case opOpenat2:
		s.openat2(c, under)
	case opStat, opLstat:
		at.noFollow = o == opLstat
		s.stat(c, a[0], at, a[1])
	case opFstatat:
		if s.emptyPath(c, a[1], a[3]) {
			s.statDescriptor(c, func(n *node) { n.stat(c, a[2]) })
			return
		}
		under.noFollow = a[3]&unix.AT_SYMLINK_NOFOLLOW != 0
		s.stat(c, a[1], under, a[2])
	case opStatx:
		s.statx(c, under)
	case opAccess:
		s.access(c, a[0], at, a[1])
	case opFaccessat:
		s.access(c, a[1], under, a[2])
	case opFaccessat2:
		if s.emptyPath(c, a[1], a[3]) {
			s.statDescriptor(c, func(n *node) { c.permit(place{mode: unix.S_IFCHR, node: n}, a[2]) })
			return
		}
		under.noFollow = a[3]&unix.AT_SYMLINK_NOFOLLOW != 0
		s.access(c, a[1], under, a[2])
	case opReadlink:
		s.readlink(c, a[0], at, a[1], a[2])
	case opReadlinkat:
		s.readlink(c, a[1], under, a[2], a[3])
	case opGetxattr, opLgetxattr:
		at.noFollow = o == opLgetxattr
		s.on(c, a[0], at, func(place) { c.Fail(unix.ENODATA) })
	case opListxattr, opLlistxattr:
		at.noFollow = o == opLlistxattr
		s.on(c, a[0], at, func(place) { c.Return(0) })
	case opStatfs:
		s.on(c, a[0], at, func(p place) {
			var st unix.Statfs_t
			if err := unix.Statfs(p.file, &st); err != nil {
				c.Fail(errnoOf(err, unix.EIO))
				return
			}
			st.Type = unix.SYSFS_MAGIC
			c.give(a[1], asBytes(&st))
		})
	default:
		c.Continue()
	}
}

// on calls f with the virtual file of a path, if there is one. Else the call fails, or the kernel does it.
func (s *Supervisor) on(c *Call, addr uint64, l lookup, f func(place)) {
	switch p, ok := s.resolve(c, addr, l); {
	case !ok:
		c.Continue()
	case p.error != 0:
		c.Fail(p.error)
	default:
		f(p)
	}
}

// emptyPath reports whether the path is empty and may be: the call is about the descriptor itself.
func (s *Supervisor) emptyPath(c *Call, addr, flags uint64) bool {
	if flags&unix.AT_EMPTY_PATH == 0 {
		return false
	}
	if addr == 0 { // Linux 6.11
		return true
	}
	var b [1]byte
	_, err := c.Read(addr, b[:])
	return err == nil && b[0] == 0
}

// statDescriptor calls f if the call's first argument is a device's descriptor.
func (s *Supervisor) statDescriptor(c *Call, f func(*node)) {
	fd := int64(int32(c.Args[0]))
	if inside := fd >= int64(s.l.Base) && fd < int64(s.l.Base+rangeSize); inside {
		if x := s.table.find(c, uint32(fd)); x != nil {
			f(x.node)
			return
		}
	}
	c.Continue()
}

func (s *Supervisor) openat2(c *Call, l lookup) {
	var how unix.OpenHow
	size := int(c.Args[3])
	if size < unix.SizeofOpenHow {
		c.Continue() // the kernel says EINVAL
		return
	}
	if _, err := c.Read(c.Args[2], asBytes(&how)); err != nil || how.Resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT|resolveCached) != 0 {
		c.Continue() // a directory of the tree is a real one
		return
	}
	l.noLinks = how.Resolve&unix.RESOLVE_NO_SYMLINKS != 0
	s.open(c, c.Args[1], l, how.Flags)
}

func (s *Supervisor) open(c *Call, addr uint64, l lookup, flags uint64) {
	exclusive := flags&unix.O_CREAT != 0 && flags&unix.O_EXCL != 0
	l.noFollow = flags&unix.O_NOFOLLOW != 0 || exclusive
	p, ok := s.resolve(c, addr, l)
	if !ok {
		c.Continue()
		return
	}
	if e := refuseOpen(p, flags); e != 0 {
		c.Fail(e)
		return
	}
	if p.node != nil && flags&unix.O_PATH == 0 {
		s.table.open(c, p.node, int(flags))
		return
	}
	// The kernel injects no descriptor of O_PATH: the program gets one that can be read, too.
	keep := flags & (unix.O_ACCMODE | unix.O_DIRECTORY | unix.O_NONBLOCK)
	if flags&unix.O_PATH != 0 {
		keep &= unix.O_DIRECTORY
	}
	fd, err := unix.Open(p.file, int(keep)|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		c.Fail(errnoOf(err, unix.EIO))
		return
	}
	if _, err := c.Inject(fd, flags&unix.O_CLOEXEC != 0, -1, true); err != nil {
		c.Fail(errnoOf(err, unix.EMFILE))
	}
	unix.Close(fd)
}

// refuseOpen says why a file cannot be opened, as sysfs and the file system of /dev would.
func refuseOpen(p place, flags uint64) unix.Errno {
	writes := flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
	path := flags&unix.O_PATH != 0
	kind := p.mode & unix.S_IFMT
	const temporary = unix.O_TMPFILE &^ unix.O_DIRECTORY
	switch {
	case p.error == unix.ENOENT && flags&unix.O_CREAT != 0 && !path && p.file != "":
		return unix.EACCES
	case p.error != 0:
		return p.error
	case path && flags&unix.O_DIRECTORY != 0 && kind != unix.S_IFDIR:
		return unix.ENOTDIR
	case path && p.node != nil:
		return unix.ENXIO
	case path && kind != unix.S_IFLNK:
		return 0
	case flags&temporary != 0:
		return unix.EOPNOTSUPP
	case flags&unix.O_CREAT != 0 && flags&unix.O_EXCL != 0:
		return unix.EEXIST
	case kind == unix.S_IFLNK:
		return unix.ELOOP
	case kind == unix.S_IFDIR && (writes || flags&unix.O_CREAT != 0):
		return unix.EISDIR
	case kind != unix.S_IFDIR && flags&unix.O_DIRECTORY != 0:
		return unix.ENOTDIR
	case p.node == nil && writes:
		return unix.EACCES
	}
	return 0
}

func (s *Supervisor) stat(c *Call, addr uint64, l lookup, to uint64) {
	s.on(c, addr, l, func(p place) {
		var st unix.Stat_t
		if err := unix.Lstat(p.file, &st); err != nil {
			c.Fail(errnoOf(err, unix.EIO))
			return
		}
		if p.path != "" {
			p.node.dress(&st)
		}
		c.give(to, asBytes(&st))
	})
}

func (s *Supervisor) statx(c *Call, l lookup) {
	flags, mask, to := c.Args[2], c.Args[3], c.Args[4]
	answer := func(n *node, file string, virtual bool) {
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, file, unix.AT_SYMLINK_NOFOLLOW|int(flags&statxSyncType), int(mask), &st); err != nil {
			c.Fail(errnoOf(err, unix.EIO))
			return
		}
		if virtual {
			n.dressx(&st)
		}
		c.give(to, asBytes(&st))
	}
	if s.emptyPath(c, c.Args[1], flags) {
		s.statDescriptor(c, func(n *node) { answer(n, s.cfg.Tree.root+n.path, true) })
		return
	}
	l.noFollow = flags&unix.AT_SYMLINK_NOFOLLOW != 0
	s.on(c, c.Args[1], l, func(p place) { answer(p.node, p.file, p.path != "") })
}

func (s *Supervisor) access(c *Call, addr uint64, l lookup, mode uint64) {
	s.on(c, addr, l, func(p place) { c.permit(p, mode) })
}

// permit answers access(2) of a virtual file: nobody writes into sysfs here, not even root.
func (c *Call) permit(p place, mode uint64) {
	switch {
	case mode&^7 != 0:
		c.Fail(unix.EINVAL)
	case mode&unix.W_OK != 0 && p.node == nil,
		mode&unix.X_OK != 0 && p.mode&unix.S_IFMT != unix.S_IFDIR:
		c.Fail(unix.EACCES)
	default:
		c.Return(0)
	}
}

func (s *Supervisor) readlink(c *Call, addr uint64, l lookup, to, size uint64) {
	if int64(int32(size)) <= 0 {
		c.Continue() // the kernel says EINVAL
		return
	}
	l.noFollow = true
	s.on(c, addr, l, func(p place) {
		text, err := os.Readlink(p.file)
		if err != nil {
			if !s.isOwnDescriptor(c, addr) {
				c.Fail(unix.EINVAL)
				return
			}
			text = p.path
		}
		b := []byte(text)[:min(uint64(len(text)), size)]
		if _, err := c.Write(to, b); err != nil {
			c.Fail(errnoOf(err, unix.EFAULT))
			return
		}
		c.Return(int64(len(b)))
	})
}

// isOwnDescriptor reports whether a path is that of a descriptor, which is a link itself.
func (s *Supervisor) isOwnDescriptor(c *Call, addr uint64) bool {
	var buf [mostPath]byte
	p, e := c.text(addr, &buf)
	if e != 0 {
		return false
	}
	_, ok := ownDescriptor(p)
	return ok
}
