package streams

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
)

// serve takes files until the user interrupts it. Clients are served side by side.
func (r *rcopy) serve() error {
	root, err := os.OpenRoot(r.into)
	if err != nil {
		return err
	}
	defer root.Close()
	l, err := r.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	r.Invocation = r.LockOutput()
	r.Printf("waiting for connections on %s\n", l.Addr())
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		conns.Go(func() {
			defer c.Close()
			defer context.AfterFunc(r.Ctx, func() { c.Close() })()
			s := &session{conn: c, root: root, say: func(format string, args ...any) {
				text := clib.Printable(fmt.Appendf(nil, format, args...)) // paths are the client's to choose
				r.Printf("client %v: %s\n", c.RemoteAddr(), text)
			}}
			s.run()
		})
	}
}

// session is a client of the server.
type session struct {
	conn net.Conn
	root *os.Root // no path leads out of it
	say  func(format string, args ...any)

	file *os.File // that is open, or nil
	path string
}

// run answers commands until the client goes.
func (s *session) run() {
	defer s.closeFile()
	for {
		h, err := readHeader(s.conn)
		if err == io.EOF {
			return
		}
		if err == nil {
			err = s.do(&h)
		}
		if err != nil {
			s.say("%s: %v", s.path, err)
			return
		}
	}
}

func (s *session) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// do carries out one command and answers it. An error ends the session, as in C.
func (s *session) do(h *header) (err error) {
	var more []byte // of the answer
	switch h.command {
	case cmdOpen:
		err = s.open(h)
	case cmdWrite:
		err = s.write(h)
	case cmdVerify:
		more, err = s.sum()
	case cmdClose:
		err = s.closeFile()
	default:
		err = fmt.Errorf("%w: command %#x", syscall.EINVAL, h.command)
	}
	a := header{command: h.command | response, length: headerSize, data: status(err), id: h.id}
	if _, werr := s.conn.Write(append(a.append(nil), more...)); err == nil {
		err = werr
	}
	return err
}

func (s *session) open(h *header) error {
	name, err := readPath(s.conn, h)
	if err != nil {
		return fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	s.path = name
	if s.file != nil {
		return fmt.Errorf("%w: another file is open", syscall.EBUSY)
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if dir := path.Dir(name); dir != "." {
		if err := s.root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	s.file, err = s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fs.FileMode(h.data&0o777))
	if err != nil {
		return err
	}
	if info, err := s.file.Stat(); err != nil || info.Mode()&fs.ModeNamedPipe != 0 {
		s.closeFile()
		// Nobody may ever read from the pipe. Then the write would not end, and neither would the server.
		return cmp.Or(err, fmt.Errorf("%w: it is a pipe", syscall.EINVAL))
	}
	return nil
}

func (s *session) write(h *header) error {
	if h.length != headerSize+8 {
		return fmt.Errorf("%w: a write of %d bytes, want %d", syscall.EINVAL, h.length, headerSize+8)
	}
	var b [8]byte
	if _, err := io.ReadFull(s.conn, b[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint64(b[:])
	switch {
	case s.file == nil:
		return fmt.Errorf("%w: no file is open", syscall.EINVAL)
	case size > 1<<62:
		return fmt.Errorf("%w: a file of %d bytes", syscall.EINVAL, size)
	}
	if _, err := io.CopyN(s.file, s.conn, int64(size)); err != nil {
		return err
	}
	s.say("%s: %d bytes", s.path, size)
	return nil
}

// sum returns the checksum of the file that is open.
func (s *session) sum() ([]byte, error) {
	if s.file == nil {
		return nil, fmt.Errorf("%w: no file is open", syscall.EINVAL)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(s.file, 0, 1<<62)); err != nil {
		return nil, err
	}
	return sum.Sum(nil), nil
}

// status is what the client is answered: 0, or an errno of Linux.
func status(err error) uint32 {
	for _, e := range []struct {
		err    error
		status uint32
	}{
		{fs.ErrNotExist, errNoEnt}, {fs.ErrPermission, errAccess}, {fs.ErrExist, errExist}, {syscall.EINVAL, errInval},
		{syscall.EBUSY, errBusy}, {syscall.EISDIR, errIsDir}, {syscall.ENOSPC, errNoSpc},
	} {
		if errors.Is(err, e.err) {
			return e.status
		}
	}
	if err != nil {
		return errIO
	}
	return 0
}
