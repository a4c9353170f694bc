//go:build unix

package showpackets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
)

// create creates the file of a capture, or takes over that of an earlier one. A pipe is taken as it is.
func create(name string) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		return openPipe(name, pipeWait)
	}
	const earlier = os.O_RDWR | unix.O_NOFOLLOW
	f, err := os.OpenFile(name, earlier|os.O_CREATE|os.O_EXCL, 0o600)
	created := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, earlier, 0)
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) {
		return nil, fmt.Errorf("%s is a symbolic link: give the name of the file itself", name)
	}
	if err != nil {
		return nil, err
	}
	if err := takeOver(f, created); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// takeOver empties a file, unless somebody else uses it. created says that this process has just made it: else the file
// must be of this user.
func takeOver(f *os.File, created bool) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch err := user.Check(s.Uid); {
	case created:
	case errors.Is(err, user.ErrOther):
		return fmt.Errorf("%s belongs to another user: choose another name", f.Name())
	case err != nil:
		return fmt.Errorf("%s: %w: choose another name", f.Name(), err)
	}
	switch {
	case s.Mode&unix.S_IFMT == unix.S_IFIFO:
		return nil
	case s.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is neither a file nor a pipe", f.Name())
	case s.Nlink != 1:
		return fmt.Errorf("%s has %d names, and a capture has one: choose another name", f.Name(), s.Nlink)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: %w", f.Name(), errTaken)
	case err != nil:
		return os.NewSyscallError("flock", err)
	}
	if err := checkEarlier(f); err != nil {
		return err
	}
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	return f.Truncate(0)
}

// openPipe opens a pipe for as long as somebody else reads it. Its reader has some time to come.
func openPipe(name string, wait time.Duration) (*os.File, error) {
	for end := time.Now().Add(wait); ; time.Sleep(wait / 100) {
		f, err := os.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err == nil {
			if err = takeOver(f, false); err == nil {
				return f, nil
			}
			f.Close()
		}
		if !errors.Is(err, unix.ENXIO) {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("nobody reads the pipe %s: start its reader first", name)
		}
	}
}
