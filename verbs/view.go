package verbs

import (
	"fmt"
	"reflect"
	"unsafe"
)

// View returns b as a slice of T, such as []float64 or a slice of structs, so that a program works with
// registered memory in place:
//
//	samples := verbs.View[float32](mr.Bytes())
//
// T has no pointers, and so no strings, slices, maps or interfaces: a pointer means nothing in another
// process. Byte order and layout are the host's. View panics, as slicing does, for another T, if the
// length of b is no multiple of T's size, and if b's address is not aligned for T. AllocMR's memory is,
// at its beginning, for any T.
//
// A view follows the rules of [MR.Bytes] that it was made of.
func View[T any](b []byte) []T {
	t := reflect.TypeFor[T]()
	checkPlain("View", t)
	size := int(t.Size())
	switch p := unsafe.SliceData(b); {
	case len(b)%size != 0:
		panic(fmt.Sprintf("verbs: View[%v] of %d bytes: the size of %v is %d", t, len(b), t, size))
	case len(b) > 0 && uintptr(unsafe.Pointer(p))%uintptr(t.Align()) != 0:
		panic(fmt.Sprintf("verbs: View[%v] of bytes at %p: the address must be divisible by %d", t, p, t.Align()))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// BytesOf returns the bytes of s, to register a program's []float64 by [PD.RegMR], for example. T is as
// for [View].
func BytesOf[T any](s []T) []byte {
	t := reflect.TypeFor[T]()
	checkPlain("BytesOf", t)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(t.Size()))
}

// checkPlain panics unless values of t are nothing but their bytes.
func checkPlain(what string, t reflect.Type) {
	if bad := pointerIn(t); bad != nil {
		panic(fmt.Sprintf("verbs: %s[%v]: %v has a pointer", what, t, bad))
	}
	if t.Size() == 0 {
		panic(fmt.Sprintf("verbs: %s[%v]: the type has no bytes", what, t))
	}
}

// pointerIn returns a type in t that has a pointer, or nil.
func pointerIn(t reflect.Type) reflect.Type {
	switch t.Kind() {
	case reflect.Array:
		return pointerIn(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if bad := pointerIn(t.Field(i).Type); bad != nil {
				return bad
			}
		}
		return nil
	case reflect.Pointer, reflect.UnsafePointer, reflect.Map, reflect.Chan, reflect.Func, reflect.Interface, reflect.Slice, reflect.String:
		return t
	}
	return nil
}
