//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/user"
)

// Processes that share a service get no message for it, and keep others from claiming it. So a share is a unix socket that
// nobody sends to. The socket's name is the share's with a random number behind it, and each process that shares has a
// socket. A process that has bound a share then looks for a mailbox of the service, and a process that has bound a mailbox
// then looks for shares. Of two processes that look at the same time both let go, never none.

// shareName returns the beginning of the names of a service's shares, up to the random number.
func shareName(name boxName) string {
	return fmt.Sprintf("@adverb/shr/%v/%016x/", name.addr, name.service)
}

// share is a share of a service.
type share struct {
	n    *Netdev
	name boxName
	own  *mailbox

	mu   sync.Mutex // orders claim and release
	free func()     // of the claim that the share has become, or nil
}

// ShareService shares a service of an address with others who share it too. It returns false if somebody has claimed it,
// with an error that is verbs.ErrBusy and says by whom if that is another process. claim makes the share a claim, as of
// ClaimService: it returns false while others share. A process must have claimed a block first.
func (n *Netdev) ShareService(addr netip.Addr, service uint64) (claim func() (bool, error), release func(), ok bool, err error) {
	if n.alone != nil { // nobody else has the address
		return func() (bool, error) { return true, nil }, func() {}, true, nil
	}
	s := &share{n: n, name: serviceName(addr, service)}
	s.own, err = bindMailbox(s.name, shareName(s.name)+randomHex())
	if err != nil {
		return nil, nil, false, fmt.Errorf("share service 0x%016x of %v: %w", service, addr, err)
	}
	if b, _ := bearersOf(s.name); len(b.mine) > 0 {
		s.own.close()
		return nil, nil, false, n.servedBy(s.name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		s.own.close()
		return nil, nil, false, fmt.Errorf("share service 0x%016x of %v: %w", service, addr, link.ErrClosed)
	}
	return s.claim, s.release, true, nil
}

// claim claims the service for the only one who shares it.
func (s *share) claim() (bool, error) {
	inode, err := s.own.inode()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	free, ok, err := s.n.claimService(s.name, inode)
	if ok {
		s.free = free
	}
	return ok, err
}

func (s *share) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free != nil {
		s.free()
	}
	s.own.close()
}

// isShared reports whether another process of this user, or another device of this one, shares a service. own is the
// inode of the share that does not count, or 0.
func isShared(name boxName, own uint64) (shared bool) {
	begin := shareName(name)
	_ = eachSocket(func(s user.Socket) { // without a list there are no shares to be seen
		shared = shared || s.Inode != own && strings.HasPrefix(s.Name, begin) && s.Mine()
	})
	return shared
}

// inode returns the number by which the kernel lists the mailbox' socket.
func (m *mailbox) inode() (uint64, error) {
	var st unix.Stat_t
	var err error
	cerr := m.conn.Control(func(fd uintptr) { err = os.NewSyscallError("fstat", unix.Fstat(int(fd), &st)) })
	return st.Ino, errors.Join(cerr, err)
}
