package lab

import (
	"bytes"
	"fmt"
)

// cpioArchive is an archive in the format "newc", as the kernel takes for an initramfs.
type cpioArchive struct {
	buf bytes.Buffer
	ino int
}

const (
	cpioDir  = 0o040755
	cpioFile = 0o100755
)

func (a *cpioArchive) dir(name string)               { a.add(name, cpioDir, nil) }
func (a *cpioArchive) file(name string, data []byte) { a.add(name, cpioFile, data) }

func (a *cpioArchive) add(name string, mode int, data []byte) {
	a.ino++
	// The fields: magic, inode, mode, uid, gid, links, mtime, size, device ×2, special device ×2,
	// name's size, check.
	fmt.Fprintf(&a.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *cpioArchive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// bytes completes the archive and returns it.
func (a *cpioArchive) bytes() []byte {
	a.add("TRAILER!!!", 0, nil)
	return a.buf.Bytes()
}
