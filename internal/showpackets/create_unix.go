//go:build unix

package showpackets

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// create creates the file of a capture, or takes over that of an earlier one. A pipe is taken as it is.
func create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) {
		return nil, fmt.Errorf("%s is a symbolic link: give the name of the file itself", name)
	}
	if err != nil {
		return nil, err
	}
	if err := takeOver(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func takeOver(f *os.File) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &s); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	switch {
	case int(s.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user: choose another name", f.Name())
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
