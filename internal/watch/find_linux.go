//go:build !adverb_portable

package watch

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/user"
)

// Anybody can bind names like those of programs, as many as he has descriptors for. So the kernel's word whose a socket
// is comes before the socket counts for anything, and users have their programs asked in turns.

// found are the sockets at which programs may listen that are to be asked.
type found struct {
	users    []*owned // in the order of their numbers
	unmapped int      // sockets of users whom this namespace does not map
	cut      bool     // the list took too long, and the rest of it was not read
}

// owned are the sockets of a user.
type owned struct {
	whose
	all    int
	names  []string // of those that are still to be asked
	asked  int      // at present
	silent []error
}

type whose struct {
	uid    uint32
	proved bool // the kernel says so, and not the names alone
}

func (w whose) String() string {
	if w.proved {
		return fmt.Sprintf("of user %d", w.uid)
	}
	return fmt.Sprintf("with names of user %d's (the kernel does not say whose they are)", w.uid)
}

// lister calls f for the sockets of this network namespace at which somebody listens. It reports whether there are more.
type lister func(f func(user.Socket)) (cut bool, err error)

// findPrograms finds the sockets of this user in a list or, for root, of all users. Where the kernel does not name
// the owners the sockets' names do, and the connection shows who has bound a socket.
func findPrograms(list lister, root bool) (*found, error) {
	f, by := &found{}, map[whose]*owned{}
	cut, err := list(func(s user.Socket) {
		claimed, ok := claimant(s.Name)
		switch {
		case !ok:
			return
		case !s.Owned:
			if s.UID = claimed; !root && user.Check(claimed) != nil {
				return
			}
		case root && !user.Known(s.UID):
			f.unmapped++
			return
		case !root && user.Check(s.UID) != nil:
			return
		}
		w := whose{s.UID, s.Owned}
		if by[w] == nil {
			by[w] = &owned{whose: w}
			f.users = append(f.users, by[w])
		}
		by[w].names = append(by[w].names, s.Name)
	})
	if err != nil {
		return nil, err
	}
	f.cut = cut
	for _, u := range f.users {
		u.all = len(u.names)
		rand.Shuffle(u.all, func(i, j int) { u.names[i], u.names[j] = u.names[j], u.names[i] }) // nobody chooses to come first
	}
	slices.SortFunc(f.users, func(a, b *owned) int { return cmp.Compare(a.uid, b.uid) })
	return f, nil
}

// claimant returns the user that the name of a program's socket names. It reports false for other names.
func claimant(name string) (uid uint32, ok bool) {
	rest, ok := strings.CutPrefix(name, socketDir)
	if !ok {
		return 0, false
	}
	number, _, ok := strings.Cut(rest, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	return uint32(n), ok && err == nil
}

// turns chooses the next socket to ask.
type turns struct {
	users []*owned // those with names
	at    int
}

func (f *found) turns() *turns { return &turns{users: slices.Clone(f.users)} }

// next returns the next socket to ask, of the user whose turn it is. It returns none while enough sockets are being
// asked of each user that has some left.
func (t *turns) next() (of *owned, name string, ok bool) {
	for n := len(t.users); n > 0; n-- {
		t.at %= len(t.users)
		u := t.users[t.at]
		if u.asked == askOfUser {
			t.at++
			continue
		}
		last := len(u.names) - 1
		name, u.names = u.names[last], u.names[:last]
		u.asked++
		if last == 0 {
			t.users = slices.Delete(t.users, t.at, t.at+1)
		} else {
			t.at++
		}
		return u, name, true
	}
	return nil, "", false
}

// silence returns texts about missing answers: first the sockets that were not asked, then the programs that did not
// answer. No user gets more texts than a reader can bear of all.
func (f *found) silence() (all []error) {
	if f.cut {
		all = append(all, fmt.Errorf("the list of this host's sockets takes the kernel too long: only a part of it was looked at"))
	}
	if f.unmapped > 0 {
		all = append(all, fmt.Errorf("%d programs were not asked: this user namespace does not map their users", f.unmapped))
	}
	for _, u := range f.users {
		if n := len(u.names); n > 0 {
			all = append(all, fmt.Errorf("%d of %d sockets %v were not asked: that would take longer than %v", n, u.all, u.whose, askTime))
		}
	}
	for _, u := range f.users {
		slices.SortFunc(u.silent, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
		if n := len(u.silent); n > toldOfUser {
			u.silent = append(u.silent[:toldOfUser], fmt.Errorf("and %d more %v did not answer", n-toldOfUser, u.whose))
		}
		all = append(all, u.silent...)
	}
	if n := len(all); n > told {
		all = append(all[:told], fmt.Errorf("and %d more words like these", n-told))
	}
	return all
}

// listeners lists the sockets until a time.
func listeners(until time.Time) lister {
	return func(f func(user.Socket)) (cut bool, err error) {
		begun := false
		inTime := func(s user.Socket) bool {
			begun = true
			f(s)
			cut = time.Now().After(until)
			return !cut
		}
		if err := user.EachSocket(user.Listening, inTime); err == nil || begun {
			return cut || err != nil, nil
		}
		list, err := os.Open("/proc/net/unix")
		if err != nil {
			return false, fmt.Errorf("list the programs that have devices: %w", err)
		}
		defer list.Close()
		err = listed(list, inTime)
		return cut, err
	}
}

// listed calls f for the sockets of a list like /proc/net/unix at which somebody listens, until f returns false.
func listed(list io.Reader, f func(user.Socket) bool) error {
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if name, ok := listener(lines.Text()); ok && !f(user.Socket{Name: name}) {
			return nil
		}
	}
	return lines.Err()
}

// acceptsConnections is the flag by which /proc/net/unix marks a socket that listens (__SO_ACCEPTCON).
const acceptsConnections = 1 << 16

// listener returns the name of the socket in a line of /proc/net/unix, if it listens:
//
//	0000000000000000: 00000002 00000000 00010000 0001 01 3146880 @adverb/watch/0/4711-ABCDEFGH
func listener(line string) (name string, ok bool) {
	f := strings.Fields(line)
	if len(f) != 8 {
		return "", false
	}
	flags, err := strconv.ParseUint(f[3], 16, 64)
	return f[7], err == nil && flags&acceptsConnections != 0
}
