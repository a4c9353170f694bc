package streams

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
)

// copy copies a file, or the files of a directory, over one connection.
func (r *rcopy) copy(source, operand string) error {
	host, dst := destination(operand, source)
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return fmt.Errorf("copy %s: it is %s, and the server has to be told the size before the contents: copy it to a file first", source, clib.Kind(info.Mode()))
	}
	conn, err := r.dial(host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(r.Ctx, func() { conn.Close() })()
	start := time.Now()
	var total int64
	one := func(name, dst string) error {
		n, err := r.copyFile(conn, name, dst)
		total += n
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	if !info.IsDir() {
		err = one(source, dst)
	} else {
		err = r.copyDir(conn, source, dst, one)
	}
	if err != nil {
		return err
	}
	usec := float64(time.Since(start).Nanoseconds()) / 1000
	r.Printf("%d bytes in %.2f seconds = %.2f Gb/sec\n", total, usec/1e6, float64(total*8)/(1000*usec))
	if r.left > 0 {
		return fmt.Errorf("copy %s: the files named above are left out: %d in all", source, r.left)
	}
	return nil
}

// copyDir has one copy each file of a directory, and makes the empty directories where the server can. The target of
// a link in it may be anywhere. So the user is told the names of files that stay behind: links, pipes and the like.
func (r *rcopy) copyDir(conn net.Conn, source, dst string, one func(name, dst string) error) error {
	dir, err := filepath.EvalSymlinks(source) // WalkDir does not follow a link, not even the one that the user has named
	if err != nil {
		return err
	}
	var empty []string // which a server that cannot make them ends the connection for: after all others
	to := func(name string) (string, error) {
		rel, err := filepath.Rel(dir, name)
		return path.Join(filepath.ToSlash(dst), filepath.ToSlash(rel)), err
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			inside, err := os.ReadDir(name)
			if len(inside) == 0 && err == nil {
				empty = append(empty, name)
			}
			return err
		}
		if !d.Type().IsRegular() {
			r.leaveOut(name, clib.Kind(d.Type()))
			return nil
		}
		at, err := to(name)
		if err != nil {
			return err
		}
		return one(name, at)
	})
	for _, name := range empty {
		if err != nil {
			return err
		}
		at, err := to(name)
		if err != nil {
			return err
		}
		if err := r.makeDir(conn, name, at); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return err
}

// leaveOut tells the user of something that is not copied.
func (r *rcopy) leaveOut(name, what string) {
	r.left++
	r.Errorf("%s: left out, as it is %s\n", name, what)
}

// makeDir has the server make a directory, if it can.
func (r *rcopy) makeDir(conn net.Conn, name, dst string) error {
	if r.greeted && !r.adverb {
		r.leaveOut(name, "an empty directory, and the server is no adverb")
		return nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if err := checkPath(dst); err != nil {
		return err
	}
	err = r.ask(conn, pathMessage(cmdMkdir, dst, uint32(info.Mode().Perm())), "make "+dst)
	if e, ok := errors.AsType[*errnoError](err); ok && e.status == errInval && !r.adverb {
		r.leaveOut(name, "an empty directory, and the server is no adverb")
		return nil
	}
	return err
}

// checkPath refuses a path that no message can hold.
func checkPath(dst string) error {
	if len(dst) >= maxPath-8 {
		return fmt.Errorf("the destination has %d bytes, limit %d", len(dst), maxPath-8)
	}
	return nil
}

// ask sends a command and reads its answer. By the first one the ends learn of each other.
func (r *rcopy) ask(conn net.Conn, message []byte, what string) error {
	if !r.greeted {
		binary.LittleEndian.PutUint64(message[8:], idHello)
	}
	if _, err := conn.Write(message); err != nil {
		return err
	}
	return r.answer(conn, message[1], what)
}

// copyFile copies one file, and returns how many bytes it had.
func (r *rcopy) copyFile(conn net.Conn, name, dst string) (int64, error) {
	if err := checkPath(dst); err != nil {
		return 0, err
	}
	f, err := clib.OpenRegular(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	r.Printf("opening...")
	if err := r.ask(conn, openMessage(dst, uint32(info.Mode().Perm())|0o100000), "open "+dst); err != nil {
		return 0, err
	}
	r.Printf("transferring...")
	if _, err := conn.Write(writeMessage(size)); err != nil {
		return 0, err
	}
	sum := sha256.New()
	from := io.Reader(io.LimitReader(f, size))
	if r.verify {
		from = io.TeeReader(from, sum)
	}
	if r.progress {
		from = &progress{from: from, size: size, show: func(percent int64) { r.Errorf("%s: %d %%", name, percent) }}
	}
	n, err := io.Copy(conn, from)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) { // the server has closed the connection, and may have said why
		if reason, ok := errors.AsType[*errnoError](r.answer(conn, cmdWrite, "write "+dst)); ok {
			err = reason
		}
	}
	switch {
	case err != nil:
		return n, err
	case n != size:
		return n, fmt.Errorf("the file became shorter while it was read: %d bytes of %d", n, size)
	case size == 0:
		if more, _ := f.Read(make([]byte, 1)); more > 0 {
			return n, errors.New("the file has contents and says that its size is 0, as those of /proc do: copy it to another file first")
		}
	}
	if err := r.answer(conn, cmdWrite, "write "+dst); err != nil {
		return n, err
	}
	if r.verify {
		if err := r.compare(conn, sum); err != nil {
			return n, err
		}
	}
	r.Printf("closing...")
	if r.adverb {
		if err := r.ask(conn, timeMessage(info.ModTime()), "set the time of "+dst); err != nil {
			return n, err
		}
	}
	if err := r.ask(conn, (&header{command: cmdClose, length: headerSize}).append(nil), "close "+dst); err != nil {
		return n, err
	}
	r.Printf("done\n")
	return n, nil
}

// compare asks the server for the checksum of its file.
func (r *rcopy) compare(conn net.Conn, sum hash.Hash) error {
	r.Printf("verifying...")
	err := r.ask(conn, (&header{command: cmdVerify, length: headerSize}).append(nil), "verify")
	if e, ok := errors.AsType[*errnoError](err); ok && e.status == errInval {
		return errors.New("the server cannot verify: is it rdma-core's rcopy? Leave out --verify")
	}
	if err != nil {
		return err
	}
	theirs := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return err
	}
	if !bytes.Equal(theirs, sum.Sum(nil)) {
		return errors.New("the server's file has another checksum")
	}
	return nil
}

// answer reads the server's answer to a command.
func (r *rcopy) answer(conn io.Reader, command byte, what string) error {
	h, err := readHeader(conn)
	if err == io.EOF {
		err = fmt.Errorf("the server has closed the connection in place of an answer")
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case h.command != command|response:
		return fmt.Errorf("%s: the answer is to command %#x, want %#x", what, h.command, command|response)
	}
	if !r.greeted {
		r.greeted, r.adverb = true, h.id == idAdverb
	}
	if h.data == 0 {
		return nil
	}
	e := &errnoError{what: what, status: h.data}
	if n := int(h.length) - headerSize; r.adverb && n > 0 && n <= maxWords {
		words := make([]byte, n)
		if _, err := io.ReadFull(conn, words); err == nil {
			e.words = string(clib.Printable(words))
		}
	}
	return e
}

// progress shows each tenth of a file as it is read.
type progress struct {
	from       io.Reader
	size, done int64
	shown      int64
	show       func(percent int64)
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	p.done += int64(n)
	if percent := p.done * 10 / max(1, p.size) * 10; percent > p.shown {
		p.shown = percent
		p.show(percent)
	}
	return n, err
}
