//go:build !linux

package hca

import (
	"fmt"
	"os"
	"unsafe"
)

// allocMemory returns n zeroed bytes that start on a page.
func allocMemory(n int) (b []byte, free func() error, err error) {
	defer func() {
		if e := recover(); e != nil { // a length that no address space holds
			err = fmt.Errorf("%v", e)
		}
	}()
	page := os.Getpagesize()
	b = make([]byte, n+page)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[off : off+n : off+n], nil, nil
}
