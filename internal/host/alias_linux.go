//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/user"
)

// Anybody may bind any name of an abstract unix socket first, and so shut others out. But the kernel
// tells whose a socket is. If another user has the name of a mailbox, the mailbox's owner binds an alias: the name
// with a random number behind it. Nobody can have bound the alias before. A process that looks for the mailbox
// looks for aliases too, and passes over the aliases of other users.
//
// A mailbox must have one owner among the processes of a user. So a process that has bound the name or an
// alias then looks whether another process of this user has one of them, and lets go if so. Of two processes that look
// at the same time both let go, never none.

// alias returns a name that a mailbox can have instead of its own.
func (n boxName) alias() string { return n.String() + "/" + randomHex() }

// randomHex returns a random number that makes a name which nobody can have bound before.
func randomHex() string { return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, rand.Uint64())) }

// eachSocket calls f for the unix datagram sockets of this network namespace that have an abstract name.
func eachSocket(f func(user.Socket)) error {
	return user.EachSocket(user.Datagram, func(s user.Socket) bool {
		f(s)
		return true
	})
}

// plainName returns the name of the mailbox that has a name or an alias, or "" of other sockets.
func plainName(name string) string {
	parts := 3 // of the plain name
	switch {
	case strings.HasPrefix(name, "@adverb/svc/"):
		parts = 4
	case !strings.HasPrefix(name, "@adverb/gsi/") && !strings.HasPrefix(name, "@adverb/qpn/"):
		return ""
	}
	switch strings.Count(name, "/") + 1 {
	case parts:
		return name
	case parts + 1:
		return name[:strings.LastIndexByte(name, '/')]
	}
	return ""
}

// bearers are the sockets that have the name of a mailbox or an alias of it.
type bearers struct {
	mine  []user.Socket // of this user: two at most, since more would not change anything
	plain user.Socket   // the socket with the name itself, of any user; the zero value if nobody has bound the name
}

// bearersOf looks for the sockets of a mailbox.
func bearersOf(name boxName) (b bearers, err error) {
	plain := name.String()
	err = eachSocket(func(s user.Socket) {
		if !strings.HasPrefix(s.Name, plain) || plainName(s.Name) != plain {
			return
		}
		if s.Name == plain {
			b.plain = s
		}
		if len(b.mine) < 2 && s.Mine() {
			b.mine = append(b.mine, s)
		}
	})
	return b, err
}

// stranger reports whether another user has the name of the mailbox, beyond doubt.
func (b *bearers) stranger() bool {
	return b.plain.Name != "" && b.plain.Others()
}

// besides reports whether a socket of this user has the name or an alias, apart from one of them.
func (b *bearers) besides(inode uint64) bool {
	return slices.ContainsFunc(b.mine, func(s user.Socket) bool { return s.Inode != inode })
}

// aliases finds the aliases of mailboxes. It remembers the aliases of this user, and asks the kernel for names now and
// then: the names of other users cost no memory, and a share of the time at most.
type aliases struct {
	list func(func(user.Socket)) error // eachSocket, but in tests
	mine map[string]string             // by the plain name
	next time.Time                     // when of may ask the kernel again
}

// of returns the name by which a mailbox of this user can be reached.
func (a *aliases) of(name boxName) string {
	if now := time.Now(); !now.Before(a.next) {
		a.mine = map[string]string{}
		_ = a.list(func(s user.Socket) { // without a list there are no aliases
			if plain := plainName(s.Name); plain != "" && plain != s.Name && s.Mine() {
				a.mine[plain] = s.Name
			}
		})
		end := time.Now()
		a.next = end.Add(max(absentTime, listShare*end.Sub(now)))
	}
	plain := name.String()
	if alias, ok := a.mine[plain]; ok {
		return alias
	}
	return plain
}
