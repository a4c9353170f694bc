// Package user says whether a process, a socket or a file of this host is of this process's user, by the kernel's
// word. A process of the same user may share addresses and memory with this process, and is told keys.
//
// The kernel names an owner by a number, in the terms of the reader's user namespace. All users that this namespace
// does not map are one number there, the overflow user ID: 65534 unless the system's administrator has changed that.
// A process whose own number is that one cannot tell its own user from the others, unless its namespace maps all
// users, as that of the system does. So that number is never believed in any other namespace, neither of others nor
// of this process: see [Self].
package user

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// ErrOther is the error for a process, socket or file of another user.
var ErrOther = errors.New("it is of another user")

// ErrUnmapped is the error for a process, socket or file of a user that this process's user namespace does not map.
// That user may be this process's own.
var ErrUnmapped = errors.New("its user cannot be told from others")

// allIDs is how many numbers there are for users: all of 32 bits but the last.
const allIDs = 1<<32 - 1

// view is how the kernel shows users to a process.
type view struct {
	overflow uint32 // the number of all users that are not mapped
	whole    bool   // all users are mapped
}

// processView is that of this process. A namespace is given its map once, and a process of Go never enters another.
var processView = sync.OnceValue(readView)

// known reports whether a number stands for one user.
func (v view) known(uid uint32) bool { return v.whole || uid != v.overflow }

// check returns nil if uid is the user with the number self, beyond doubt.
func (v view) check(uid, self uint32) error {
	switch {
	case !v.known(uid):
		return fmt.Errorf("%w: this user namespace shows all users whom it does not map as %d", ErrUnmapped, uid)
	case uid != self:
		return ErrOther
	}
	return nil
}

// Check returns nil if the number that the kernel gives for a user is that of this process's effective user, beyond
// doubt. Else the error is ErrOther or ErrUnmapped.
func Check(uid uint32) error { return processView().check(uid, uint32(os.Geteuid())) }

// Known reports whether a number stands for one user, and not for all that this process's namespace does not map.
func Known(uid uint32) bool { return processView().known(uid) }

// IsRoot reports whether uid is root of this process's user namespace, beyond doubt.
func IsRoot(uid uint32) bool { return uid == 0 && Known(0) }

// Self returns nil if this process can know others of its user. Else the error is ErrUnmapped, and says why.
func Self() error { return Check(uint32(os.Geteuid())) }
