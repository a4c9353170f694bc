//go:build !adverb_portable

package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// holder says which process has bound a mailbox, for an error message. The kernel tells everybody that
// a process has bound the mailbox, but names only processes that we may look into.
func holder(name boxName) string {
	b, err := bearersOf(name)
	if err != nil {
		return "another program"
	}
	s := b.plain
	if len(b.mine) > 0 {
		s = b.mine[0]
	}
	if s.Name == "" {
		return "another program, which has just ended or let go of it,"
	}
	link := fmt.Sprintf("socket:[%d]", s.Inode)
	// Sockets stand in the descriptors of their process as socket:[inode].
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err != nil || target != link {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return fmt.Sprintf("process %s (%s)", filepath.Base(dir), strings.TrimSpace(string(comm)))
	}
	return fmt.Sprintf("a process of another user or container (as root, ss -xap shows whose: its socket is %s, inode %d)", name, s.Inode)
}
