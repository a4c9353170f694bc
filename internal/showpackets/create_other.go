//go:build !unix

package showpackets

import (
	"fmt"
	"io/fs"
	"os"
)

// create creates the file of a capture, or takes over that of an earlier one.
func create(name string) (*os.File, error) {
	if s, err := os.Lstat(name); err == nil && s.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("%s is a symbolic link: give the name of the file itself", name)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := checkEarlier(f); err != nil {
		f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
