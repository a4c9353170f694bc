package uapi

import (
	"encoding/binary"
	"fmt"
)

// native is the byte order of the ABI's numbers.
var native = binary.NativeEndian

// Decode fills v, a pointer to a structure of this package, from the beginning of b. It fails if b is shorter than the
// structure.
func Decode(b []byte, v any) error {
	if size := binary.Size(v); len(b) < size {
		return fmt.Errorf("decode %T: it takes %d bytes, and %d came", v, size, len(b))
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
	_, err := binary.Decode(whole, native, v)
	return err
}

// Append appends v, a structure of this package.
func Append(b []byte, v any) []byte {
	b, err := binary.Append(b, native, v)
	if err != nil {
		panic(err) // v is no structure of fixed size
	}
	return b
}
