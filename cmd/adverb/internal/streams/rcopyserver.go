package streams

import (
	"bufio"
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
	"path/filepath"
	"strings"
	"syscall"
	"time"

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
	return newService(r.Invocation, r.limits, full).run(l, func(c *client) {
		newSession(c, root, func(format string, args ...any) {
			text := clib.Printable(fmt.Appendf(nil, format, args...)) // paths are the client's to choose
			r.Printf("client %v: %s\n", c.RemoteAddr(), text)
		}).run()
	})
}

// full answers a client for which there is no room. It is about to open a file.
func full(conn net.Conn) {
	a := header{command: cmdOpen | response, length: headerSize, data: errAgain}
	_, _ = conn.Write(a.append(nil))
}

// session is a client of the server.
type session struct {
	conn *client
	in   *bufio.Reader // of the client's bytes
	root *os.Root      // no path leads out of it
	say  func(format string, args ...any)

	file  *upload // that is open, or nil
	path  string
	words bool // the client reads words behind an answer
}

func newSession(c *client, root *os.Root, say func(format string, args ...any)) *session {
	return &session{conn: c, in: bufio.NewReader(noting{c, c}), root: root, say: say}
}

// run answers commands until the client goes.
func (s *session) run() {
	defer s.closeFile()
	for {
		h, err := readHeader(s.in)
		if err == io.EOF {
			return
		}
		if err == nil {
			err = s.do(&h)
		}
		if err != nil {
			s.say("%s: %v", s.path, s.conn.why(err))
			return
		}
	}
}

// closeFile closes the file that is open, and drops its written bytes.
func (s *session) closeFile() {
	if s.file != nil {
		s.file.drop()
		s.file = nil
	}
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
	case cmdTime:
		err = s.setTime(h)
	case cmdMkdir:
		err = s.mkdir(h)
	case cmdClose:
		if s.file != nil {
			err = s.file.keep()
			s.closeFile()
		}
	default:
		err = fmt.Errorf("%w: command %#x", syscall.EINVAL, h.command)
	}
	a := header{command: h.command | response, length: headerSize, data: status(err), id: h.id}
	if h.id == idHello {
		a.id, s.words = idAdverb, true
	}
	if err != nil && s.words {
		more = []byte(err.Error())
		more = more[:min(len(more), maxWords)]
		a.length += uint16(len(more))
	}
	if _, werr := s.conn.Write(append(a.append(nil), more...)); err == nil {
		err = werr
	}
	return err
}

// place returns where a path of a message leads below the root.
func (s *session) place(h *header) (string, error) {
	name, err := readPath(s.in, h)
	if err != nil {
		return "", fmt.Errorf("%w: %w", syscall.EINVAL, err)
	}
	s.path = name
	name = path.Clean(strings.TrimLeft(name, "/"))
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: the path leads out of the server's directory", fs.ErrPermission)
	}
	if dir := path.Dir(name); dir != "." {
		err = s.root.MkdirAll(dir, 0o777)
	}
	return name, err
}

func (s *session) open(h *header) (err error) {
	name, err := s.place(h)
	switch {
	case err != nil:
		return err
	case s.file != nil:
		return fmt.Errorf("%w: another file is open", syscall.EBUSY)
	}
	s.file, err = newUpload(s.root, name, fs.FileMode(h.data&0o777))
	return err
}

// mkdir makes a directory, unless it is there.
func (s *session) mkdir(h *header) error {
	name, err := s.place(h)
	if err != nil {
		return err
	}
	err = s.root.Mkdir(name, fs.FileMode(h.data)&fs.ModePerm)
	if info, serr := s.root.Stat(name); serr == nil && info.IsDir() {
		return nil
	}
	return err
}

// setTime gives the open file a modification time.
func (s *session) setTime(h *header) error {
	if h.length != headerSize+16 {
		return fmt.Errorf("%w: a time of %d bytes, want %d", syscall.EINVAL, h.length, headerSize+16)
	}
	var b [16]byte
	if _, err := io.ReadFull(s.in, b[:]); err != nil {
		return err
	}
	sec, nsec := int64(binary.LittleEndian.Uint64(b[:])), binary.LittleEndian.Uint64(b[8:])
	switch {
	case s.file == nil:
		return fmt.Errorf("%w: no file is open", syscall.EINVAL)
	case nsec >= 1e9:
		return fmt.Errorf("%w: %d nanoseconds in a second", syscall.EINVAL, nsec)
	}
	s.file.modified = time.Unix(sec, int64(nsec))
	return nil
}

func (s *session) write(h *header) error {
	if h.length != headerSize+8 {
		return fmt.Errorf("%w: a write of %d bytes, want %d", syscall.EINVAL, h.length, headerSize+8)
	}
	var b [8]byte
	if _, err := io.ReadFull(s.in, b[:]); err != nil {
		return err
	}
	size := binary.LittleEndian.Uint64(b[:])
	switch {
	case s.file == nil:
		return fmt.Errorf("%w: no file is open", syscall.EINVAL)
	case size > 1<<62:
		return fmt.Errorf("%w: a file of %d bytes", syscall.EINVAL, size)
	}
	if err := s.file.fill(s.in, int64(size)); err != nil {
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
	ctx, stop := s.whileThere()
	defer stop()
	sum := sha256.New()
	file := io.NewSectionReader(s.file.File, 0, 1<<62)
	for {
		_, err := io.CopyN(sum, file, verifyPiece)
		s.conn.heard() // the server is at work, and the client waits
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == io.EOF:
			return sum.Sum(nil), nil
		case err != nil:
			return nil, err
		}
	}
}

// verifyPiece is after how many bytes of a file the server looks whether anybody waits for its checksum.
const verifyPiece = 4 << 20

var errLeft = errors.New("the client has left before it had the answer")

// whileThere returns a context that ends with the session, and when the client leaves. Until stop is called, nobody
// else may read the client's bytes.
func (s *session) whileThere() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(s.conn.ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		if _, err := s.in.Peek(1); err != nil {
			cancel(errLeft)
		}
	}()
	return ctx, func() {
		_ = s.conn.SetReadDeadline(time.Unix(1, 0)) // ends Peek
		<-looked
		_ = s.conn.SetReadDeadline(time.Time{})
		cancel(nil)
	}
}

// status is the answer to the client: 0, or an errno of Linux.
func status(err error) uint32 {
	if escapes(err) {
		return errAccess
	}
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

// escapes reports whether a path led out of an os.Root, by a symbolic link.
func escapes(err error) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && strings.Contains(e.Err.Error(), "escapes")
}
