package clib

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// OpenRegular opens a file to be read. It refuses all but regular files, and waits for nobody: a pipe may have no writer,
// and a device no end.
func OpenRegular(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return nil, err
	}
	if err := closeUnlessRegular(f); err != nil {
		return nil, err
	}
	return f, nil
}

func closeUnlessRegular(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		err = NotRegular(f.Name(), info.Mode())
	}
	if err != nil {
		f.Close()
	}
	return err
}

// NotRegular returns an error that names the kind of a file that is not a regular one: EISDIR of a directory, and
// else EINVAL.
func NotRegular(name string, mode fs.FileMode) error {
	if mode.IsRegular() {
		return nil
	}
	return &notRegularError{name, mode}
}

type notRegularError struct {
	name string
	mode fs.FileMode
}

func (e *notRegularError) Error() string {
	return fmt.Sprintf("%s is %s, and a regular file is needed", e.name, Kind(e.mode))
}

func (e *notRegularError) Unwrap() error {
	if e.mode.IsDir() {
		return syscall.EISDIR
	}
	return syscall.EINVAL
}

// Kind names the kind of a file that is not regular.
func Kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "no file"
}
