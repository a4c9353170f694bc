package uapi

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"unsafe"
)

// native is the byte order of the ABI's numbers.
var native = binary.NativeEndian

// memory returns the memory of a structure of this package, to which v points, if memory and ABI have the same bytes, without
// gaps. size is that of the ABI. The connection manager's structures have hundreds of bytes, and encoding/binary goes through
// them byte by byte. A structure has numbers alone, and each field has a name, as TestCopied finds out: so each byte may have
// each value.
func memory(v reflect.Value) (b []byte, size int, ok bool) {
	size = binary.Size(v.Interface())
	if size != int(v.Type().Elem().Size()) {
		return nil, size, false
	}
	return unsafe.Slice((*byte)(v.UnsafePointer()), size), size, true
}

// Decode fills v, a pointer to a structure of this package, from the beginning of b. It fails if b is shorter than the
// structure.
func Decode(b []byte, v any) error {
	m, size, ok := memory(reflect.ValueOf(v))
	if len(b) < size {
		return fmt.Errorf("decode %T: it takes %d bytes, and %d came", v, size, len(b))
	}
	if ok {
		copy(m, b)
		return nil
	}
	_, err := binary.Decode(b, native, v)
	return err
}

// DecodePrefix is Decode for commands that have grown: fields beyond the end of b are zero. It fails if b lacks the
// first least bytes.
func DecodePrefix(b []byte, least int, v any) error {
	if len(b) < least {
		return fmt.Errorf("decode %T: it takes %d bytes at least, and %d came", v, least, len(b))
	}
	whole := make([]byte, binary.Size(v))
	copy(whole, b)
	return Decode(whole, v)
}

// Append appends v, a structure of this package.
func Append(b []byte, v any) []byte {
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	if m, _, ok := memory(p); ok {
		return append(b, m...)
	}
	b, err := binary.Append(b, native, v)
	if err != nil {
		panic(err) // v is no structure of fixed size
	}
	return b
}
