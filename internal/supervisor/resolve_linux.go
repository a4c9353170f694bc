//go:build amd64 || arm64

package supervisor

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// A place is where a path leads that concerns the supervisor.
type place struct {
	path  string // virtual, if it is in the tree
	file  string // the real file
	node  *node  // or nil
	mode  uint32 // of the real file; 0 if there is none
	error unix.Errno
}

// mostLinks is how many symbolic links are followed on the way, as in the kernel.
const mostLinks = 40

// lookup is how a path is resolved.
type lookup struct {
	dirfd    int32
	noFollow bool // not the last part, if that is a symbolic link
	noLinks  bool // no symbolic link at all
}

// resolve finds where a path of the target leads. It says no where the kernel does better: that is where nothing of the tree
// is concerned. A symbolic link outside of the tree is followed only where .. follows in the path, which decides where that
// leads. So a link of the system's into the tree is not found, and must be a prefix of its own.
func (s *Supervisor) resolve(c *Call, addr uint64, l lookup) (place, bool) {
	if addr == 0 {
		return place{}, false
	}
	var buf [mostPath]byte
	p, e := c.text(addr, &buf)
	if e != 0 || p == "" {
		return place{}, false
	}
	return s.resolveText(c, p, l)
}

func (s *Supervisor) resolveText(c *Call, p string, l lookup) (place, bool) {
	t := s.cfg.Tree
	if p[0] != '/' {
		link := c.procPath("cwd")
		if l.dirfd != unix.AT_FDCWD {
			link = c.fdPath(uint32(l.dirfd))
		}
		dir, err := os.Readlink(link)
		if err != nil || dir == "" || dir[0] != '/' {
			return place{}, false
		}
		p = dir + "/" + p
	}
	if fd, ok := ownDescriptor(p); ok {
		return s.resolveDescriptor(c, fd, l)
	}
	if v, ok := t.inTree(p); ok {
		p = v
	} else if !strings.Contains(p, "/..") && !t.virtual(squeeze(p)) {
		return place{}, false
	}
	if rest, ok := strings.CutPrefix(p, "/proc/self/"); ok { // which is another process here
		p = c.procPath(rest)
	}
	return t.walk(p, l)
}

// squeeze takes empty parts and dots out of an absolute path, if it has any.
func squeeze(p string) string {
	if strings.Contains(p, "//") || strings.Contains(p, "/.") {
		return path.Clean(p)
	}
	return p
}

// ownDescriptor knows the names that a program has for its descriptors.
func ownDescriptor(p string) (int32, bool) {
	for _, dir := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"} {
		if n, ok := strings.CutPrefix(p, dir); ok {
			return descriptorNumber(n)
		}
	}
	return 0, false
}

// resolveDescriptor finds the virtual file that a descriptor shows.
func (s *Supervisor) resolveDescriptor(c *Call, fd int32, l lookup) (place, bool) {
	if f := s.table.find(c, uint32(fd)); f != nil {
		return s.cfg.Tree.at(f.node.path), true
	}
	link, err := os.Readlink(c.fdPath(uint32(fd)))
	if err != nil {
		return place{}, false
	}
	v, ok := s.cfg.Tree.inTree(link)
	if !ok {
		return place{}, false
	}
	return s.cfg.Tree.walk(v, lookup{dirfd: unix.AT_FDCWD, noFollow: true})
}

// at is the place of a path of the tree that has no symbolic links.
func (t *Tree) at(p string) place {
	r := place{path: p, file: t.root + p, node: t.node(p)}
	var st unix.Stat_t
	if err := unix.Lstat(r.file, &st); err != nil {
		r.error = errnoOf(err, unix.EIO)
		return r
	}
	r.mode = st.Mode
	return r
}

// walk resolves an absolute path, one part after the other.
func (t *Tree) walk(p string, l lookup) (place, bool) {
	at, rest, links := "/", p, 0
	entered := false // the path was in the tree, so the kernel cannot resolve it
	for rest != "" {
		part, after, more := strings.Cut(rest, "/")
		rest = after
		switch part {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		last := !more // a slash at the end follows a link
		if !t.virtual(next) {
			switch {
			case t.above(next):
			case !strings.Contains("/"+rest, "/.."):
				if !entered {
					return place{}, false
				}
				// The tree led out of itself: the program gets the system's file.
				return t.outside(path.Join(next, rest)), true
			default:
				if to, err := os.Readlink(next); err == nil {
					if links++; links > mostLinks || l.noLinks {
						return place{}, false // the kernel finds that, too
					}
					at, rest = follow(at, to, rest, more)
					continue
				}
			}
			at = next
			continue
		}
		entered = true
		r := t.at(next)
		switch {
		case r.error != 0:
			if more && strings.Trim(rest, "/") != "" {
				r.mode, r.file = 0, "" // nothing can be made there
			}
			return r, true
		case r.mode&unix.S_IFMT == unix.S_IFLNK && !(last && l.noFollow):
			links++
			to, err := os.Readlink(r.file)
			if err != nil || links > mostLinks || l.noLinks {
				return place{error: unix.ELOOP}, true
			}
			at, rest = follow(at, to, rest, more)
			continue
		case more && r.mode&unix.S_IFMT != unix.S_IFDIR:
			return place{error: unix.ENOTDIR}, true
		}
		at = next
	}
	if !t.virtual(at) {
		if !entered {
			return place{}, false
		}
		return t.outside(at), true
	}
	return t.at(at), true
}

// follow goes on at a symbolic link's target.
func follow(at, to, rest string, more bool) (string, string) {
	if more {
		rest = to + "/" + rest
	} else {
		rest = to
	}
	if strings.HasPrefix(to, "/") {
		at = "/"
	}
	return at, rest
}

// outside is the place of a file of the system.
func (t *Tree) outside(p string) place {
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil {
		return place{error: errnoOf(err, unix.EIO)}
	}
	return place{file: p, mode: st.Mode}
}
