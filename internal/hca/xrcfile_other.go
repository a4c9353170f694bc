//go:build !linux || adverb_portable

package hca

import (
	"io"
	"os"
)

// holdFile does nothing: no descriptor of these systems is without effect on the file. One that is closed drops the
// process's locks on FreeBSD and macOS, and one that is open keeps the file from being removed on Windows. APFS gives no
// number a second time, and a number of NTFS has a count of its uses. On FreeBSD a file that is made after a domain's file
// was removed may get its number, and with it the domain.
func holdFile(*os.File) (io.Closer, error) { return io.NopCloser(nil), nil }
