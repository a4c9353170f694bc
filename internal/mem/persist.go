package mem

import (
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// Sync stores the span's bytes in the file behind them. The region was registered with AccessFlushPersistent. It fails with
// ErrFault where the memory is gone, and with the system's error where the file does not take the bytes.
func (s Span) Sync() error {
	if s.n == 0 {
		return nil
	}
	if err := syncFile(s.Bytes()); err != nil {
		return fmt.Errorf("store %d bytes at %#x in their file: %w", s.n, addrOf(s.Bytes()), err)
	}
	return nil
}

// CanPersist reports whether this system stores mapped memory in files.
func CanPersist() bool { return canPersist }

// checkPersistent refuses a right to flush to storage for memory that has no file.
func checkPersistent(b []byte, access verbs.Access) error {
	if access&verbs.AccessFlushPersistent == 0 {
		return nil
	}
	return persistent(b)
}

// notPersistent refuses memory, for a reason.
func notPersistent(why string) error {
	return verbs.Errorf(verbs.ErrInvalid, "%v: %s: register a shared mapping of a file (MAP_SHARED), or use RegFileMR", verbs.AccessFlushPersistent, why)
}
