package streams

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
)

// upload is a file that a client writes. It has a name of its own beside the file that it is to become: a reader
// finds the old file meanwhile, and if the client goes the old file stays.
type upload struct {
	*os.File
	root     *os.Root
	name     string // the file's name until it is kept
	target   string
	modified time.Time // zero: now
}

// newUpload makes an upload. Nothing but a regular file is replaced: the target may be a pipe that a program reads.
func newUpload(root *os.Root, target string, perm fs.FileMode) (*upload, error) {
	if info, err := root.Stat(target); err == nil {
		if err := clib.NotRegular(target, info.Mode()); err != nil {
			return nil, err
		}
	} else if escapes(err) {
		return nil, err
	}
	name := path.Join(path.Dir(target), ".rcopy-"+rand.Text())
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, err
	}
	return &upload{File: f, root: root, name: name, target: target}, nil
}

// fill writes n bytes from r, and leaves holes where a piece is zero. A file has no holes where its system knows none.
func (u *upload) fill(r io.Reader, n int64) error {
	const piece = 64 << 10
	b, zeros := make([]byte, piece), make([]byte, hole)
	at, err := u.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	for n > 0 {
		b := b[:min(n, piece)]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		n -= int64(len(b))
		for len(b) > 0 {
			zero := 0
			for zero < len(b) && bytes.Equal(b[zero:min(zero+hole, len(b))], zeros[:min(hole, len(b)-zero)]) {
				zero = min(zero+hole, len(b))
			}
			data := zero
			for data < len(b) && !bytes.Equal(b[data:min(data+hole, len(b))], zeros[:min(hole, len(b)-data)]) {
				data = min(data+hole, len(b))
			}
			if data > zero {
				if _, err := u.WriteAt(b[zero:data], at+int64(zero)); err != nil {
					return err
				}
			}
			at += int64(data)
			b = b[data:]
		}
	}
	if err := u.Truncate(at); err != nil { // a hole may be the end
		return err
	}
	_, err = u.Seek(at, io.SeekStart)
	return err
}

// hole is the length of the pieces that holes are made of, in bytes: the block of most file systems.
const hole = 4 << 10

// keep puts the file in its place.
func (u *upload) keep() error {
	if err := u.Close(); err != nil {
		return err
	}
	if !u.modified.IsZero() {
		if err := u.root.Chtimes(u.name, time.Time{}, u.modified); err != nil {
			return err
		}
	}
	if err := u.root.Rename(u.name, u.target); err != nil {
		return err
	}
	u.name = ""
	return nil
}

// drop closes the file, and removes it unless it is in its place.
func (u *upload) drop() error {
	err := u.Close()
	if u.name != "" {
		err = cmp.Or(u.root.Remove(u.name), err)
	}
	return err
}
