//go:build unix

package cm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const othersWrite = 0o022 // by the permissions of the group and of all

// checkWriters refuses a key that others may write, or may replace by another file.
func checkWriters(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && !trusted(st.Uid, os.Geteuid()) {
		return fmt.Errorf("%s belongs to user %d, who may write it: take a file of your own", name, st.Uid)
	}
	if info.Mode().Perm()&othersWrite != 0 {
		return fmt.Errorf("others may write %s (permissions %v), and so choose the key: \"chmod 600\" it", name, info.Mode().Perm())
	}
	path, err := filepath.EvalSymlinks(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return err
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if replaceable(info.Mode()) {
			return fmt.Errorf("anybody may write the directory %s (permissions %v), and so replace %s: \"chmod o-w\" it", dir, info.Mode().Perm(), name)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// trusted reports whether the owner of a file is the user or root. Root may name whose file he likes.
func trusted(owner uint32, user int) bool {
	return owner == 0 || user == 0 || int64(owner) == int64(user)
}

// replaceable reports whether anybody may put another file in the place of one in a directory. Where the sticky bit is
// set, its owner alone may.
func replaceable(dir fs.FileMode) bool {
	return dir.Perm()&0o002 != 0 && dir&fs.ModeSticky == 0
}
