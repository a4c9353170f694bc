//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Tree holds the virtual files as real ones, below a temporary directory. What the program opens is injected from there,
// so that directories can be read and relative paths lead on. The path of a virtual file is that below the directory.
type Tree struct {
	root     string
	prefixes []string
	lock     int  // the directory, by which its owner holds a lock on it
	adopted  bool // the files are another process's

	mu     sync.RWMutex
	nodes  map[string]*node
	closed bool
}

// A Node is a device node of the tree.
type Node struct {
	Device       Device
	Major, Minor uint32
	// NativeWrite asks for a number in the part of the range where writes of Filter.NativeWrite bytes go to the injected
	// descriptor itself.
	NativeWrite bool
	// Anywhere lets dup2 put copies outside of the range. There the supervisor answers only Filter.Ioctls.
	Anywhere bool
}

type node struct {
	Node
	path string // virtual
}

// treePrefix begins the names of the directories of trees.
const treePrefix = "adverb-run-"

// base is where trees are made: memory of this user where there is some.
func base() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
		return dir
	}
	return os.TempDir()
}

// NewTree makes a tree whose files have paths below the prefixes. All paths below a prefix are virtual: what the system has
// there is hidden. It removes the trees of runs that are dead.
func NewTree(prefixes ...string) (*Tree, error) {
	sweep(base())
	t := &Tree{nodes: map[string]*node{}}
	for _, p := range prefixes {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return nil, fmt.Errorf("make a tree: prefix %q: give an absolute path without . and .. that is not the root", p)
		}
		t.prefixes = append(t.prefixes, p)
	}
	trees.mu.Lock() // until it is known to those who remove them
	defer trees.mu.Unlock()
	if trees.ends {
		return nil, errTreeClosed
	}
	for {
		dir, err := os.MkdirTemp(base(), treePrefix)
		if err != nil {
			return nil, fmt.Errorf("make a tree: %w: set TMPDIR to a directory that can be written", err)
		}
		fd, err := lockDir(dir, unix.LOCK_SH)
		if err == unix.ENOENT { // another start found it without a lock, and removed it
			continue
		}
		if err != nil {
			os.Remove(dir)
			return nil, fmt.Errorf("make a tree: lock %s: %w", dir, err)
		}
		t.root, t.lock = dir, fd
		break
	}
	// Some systems have symbolic links on the way. /proc/TID/fd shows the path without.
	if real, err := filepath.EvalSymlinks(t.root); err == nil {
		t.root = real
	}
	trees.list = append(trees.list, t)
	return t, nil
}

// adopt returns a tree whose files another process has made, and removes. It needs the nodes alone.
func adopt(root string, prefixes []string) *Tree {
	return &Tree{root: root, prefixes: prefixes, lock: -1, adopted: true, nodes: map[string]*node{}}
}

// lockDir opens a directory and locks it. All that die let go of the lock.
func lockDir(dir string, how int) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if how == unix.LOCK_SH {
		err = unix.Flock(fd, how)
	} else {
		err = unix.Flock(fd, how|unix.LOCK_NB)
	}
	var st, now unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil {
		err = unix.Lstat(dir, &now)
	}
	switch {
	case err != nil:
	case st.Ino != now.Ino || st.Dev != now.Dev: // removed while this waited for the lock
		err = unix.ENOENT
	case st.Uid != uint32(os.Geteuid()):
		err = unix.EPERM
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sweep removes the trees of dead runs of this user.
func sweep(base string) {
	dirs, _ := filepath.Glob(filepath.Join(base, treePrefix+"*"))
	for _, dir := range dirs {
		if fd, err := lockDir(dir, unix.LOCK_EX); err == nil {
			removeTree(dir)
			unix.Close(fd)
		}
	}
}

// removeTree removes a tree, whose directories cannot be written.
func removeTree(root string) error {
	filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(name, 0o700)
		}
		return nil
	})
	return os.RemoveAll(root)
}

// treeSet is the trees of this process.
type treeSet struct {
	mu   sync.Mutex
	list []*Tree
	ends bool
}

// trees are removed when this process ends.
var trees treeSet

func (s *treeSet) roots() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.list {
		list = append(list, t.root)
	}
	return list
}

// remove removes them all. There are no others after that.
func (s *treeSet) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = true
	for _, t := range s.list {
		t.Close()
	}
}

var errTreeClosed = errors.New("make a tree: the run ends")

// Close removes the tree. Nothing can be made in it any more.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	err := removeTree(t.root)
	unix.Close(t.lock)
	return err
}

// change calls f, which makes entries in directories that it has opened by enter. enter makes the directory of a virtual path where
// there is none, and returns the path of the entry's file. Afterwards nobody may write to the directories.
func (t *Tree) change(f func(enter func(p string) (file string, err error)) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errTreeClosed
	}
	open := map[string]bool{} // directories below the root
	defer func() {
		for dir := range open {
			os.Chmod(dir, 0o555)
		}
	}()
	return f(func(p string) (string, error) {
		if !path.IsAbs(p) || path.Clean(p) != p || !t.virtual(p) {
			return "", fmt.Errorf("make %s: not below a prefix of the tree", p)
		}
		return t.root + p, t.open(path.Dir(t.root+p), open)
	})
}

// open makes a directory, and those above it, and has them be written to, unless they are open already.
func (t *Tree) open(dir string, open map[string]bool) error {
	if dir == t.root || open[dir] {
		return nil
	}
	if err := t.open(path.Dir(dir), open); err != nil {
		return err
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = os.Chmod(dir, 0o755)
	}
	open[dir] = err == nil
	return err
}

// make calls f with the path of the file of a new entry.
func (t *Tree) make(p string, f func(file string) error) error {
	return t.change(func(enter func(string) (string, error)) error {
		file, err := enter(p)
		if err != nil {
			return err
		}
		return f(file)
	})
}

// Dir makes a directory, and those above it.
func (t *Tree) Dir(p string) error {
	return t.make(p, func(file string) error {
		if err := os.Mkdir(file, 0o555); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	})
}

// File makes a file that can be read only, or replaces it at once.
func (t *Tree) File(p, content string) error {
	return t.make(p, func(file string) error {
		next := file + ".new"
		if err := os.WriteFile(next, []byte(content), 0o444); err != nil {
			return err
		}
		return os.Rename(next, file)
	})
}

// Files makes many files at once, with their content by their paths. It replaces none.
func (t *Tree) Files(files map[string]string) error {
	return t.change(func(enter func(string) (string, error)) error {
		for _, p := range slices.Sorted(maps.Keys(files)) {
			file, err := enter(p)
			if err == nil {
				err = writeNew(file, files[p])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// writeNew is as os.WriteFile, which would have the file's descriptor in the netpoller, and makes a file that is not there.
func writeNew(file, content string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return &fs.PathError{Op: "make", Path: file, Err: err}
	}
	_, err = unix.Write(fd, []byte(content)) // less than a page, which is written as a whole
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// Link makes a symbolic link. Its target is a virtual path: relative to the link's, or absolute.
func (t *Tree) Link(p, target string) error {
	return t.make(p, func(file string) error { return os.Symlink(target, file) })
}

// Remove removes a file, a link, a node or a directory with all that it has.
func (t *Tree) Remove(p string) error {
	return t.make(p, func(file string) error {
		for name := range t.nodes {
			if name == p || strings.HasPrefix(name, p+"/") {
				delete(t.nodes, name)
			}
		}
		return removeTree(file)
	})
}

// Node makes a device node.
func (t *Tree) Node(p string, n Node) error {
	if t.adopted {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.nodes[p] = &node{Node: n, path: p}
		return nil
	}
	return t.make(p, func(file string) error {
		t.nodes[p] = &node{Node: n, path: p}
		// A directory is to say that this is a character device. Everybody may make one of number 0, but in an overlayfs.
		if unix.Mknod(file, unix.S_IFCHR|0o444, 0) == nil {
			return nil
		}
		return os.WriteFile(file, nil, 0o444)
	})
}

// virtual reports whether a path is below a prefix, or one.
func (t *Tree) virtual(p string) bool {
	for _, x := range t.prefixes {
		if strings.HasPrefix(p, x) && (len(p) == len(x) || p[len(x)] == '/') {
			return true
		}
	}
	return false
}

// above reports whether a prefix is below a path.
func (t *Tree) above(p string) bool {
	for _, x := range t.prefixes {
		if strings.HasPrefix(x, p) && (p == "/" || len(x) > len(p) && x[len(p)] == '/') {
			return true
		}
	}
	return false
}

func (t *Tree) node(p string) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.nodes[p]
}

// inTree turns a path of the temporary directory into the virtual one.
func (t *Tree) inTree(p string) (string, bool) {
	rest, ok := strings.CutPrefix(p, t.root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	if rest == "" {
		rest = "/"
	}
	return rest, true
}

// stat answers fstat(2) of an open device.
func (n *node) stat(c *Call, to uint64) {
	st, e := n.attributes(c.s.cfg.Tree)
	if e != 0 {
		c.Fail(e)
		return
	}
	c.give(to, asBytes(&st))
}

func (n *node) attributes(t *Tree) (st unix.Stat_t, e unix.Errno) {
	if err := unix.Lstat(t.root+n.path, &st); err != nil {
		return st, errnoOf(err, unix.EIO)
	}
	n.dress(&st)
	return st, 0
}

// dress makes the attributes of a file of the tree those of the virtual file.
func (n *node) dress(st *unix.Stat_t) {
	st.Uid, st.Gid = 0, 0
	if n != nil {
		st.Mode = unix.S_IFCHR | 0o666
		st.Rdev = unix.Mkdev(n.Major, n.Minor)
	}
}

func (n *node) dressx(st *unix.Statx_t) {
	st.Uid, st.Gid = 0, 0
	if n != nil {
		st.Mode = unix.S_IFCHR | 0o666
		st.Rdev_major, st.Rdev_minor = n.Major, n.Minor
	}
}

func asBytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// give writes an answer into the target's memory, and answers 0.
func (c *Call) give(to uint64, b []byte) {
	if _, err := c.Write(to, b); err != nil {
		c.Fail(errnoOf(err, unix.EFAULT))
		return
	}
	c.Return(0)
}

// descriptorNumber reads the last part of a path such as /proc/self/fd/3.
func descriptorNumber(s string) (int32, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int32(n), err == nil
}
