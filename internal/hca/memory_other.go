//go:build !linux

package hca

import (
	"os"
	"unsafe"
)

// allocMemory returns n zeroed bytes that start on a page.
func allocMemory(n int) ([]byte, func() error, error) {
	page := os.Getpagesize()
	b := make([]byte, n+page)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[off : off+n : off+n], nil, nil
}
