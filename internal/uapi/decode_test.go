package uapi

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"testing"
)

// numbers reports whether a type has numbers alone, in fields with names.
func numbers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Name == "_" || !numbers(f.Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return numbers(t.Elem())
	}
	return reflect.Uint8 <= t.Kind() && t.Kind() <= reflect.Uint64 || reflect.Int8 <= t.Kind() && t.Kind() <= reflect.Int64
}

// Structures whose memory is what the ABI has are copied, as encoding/binary would have made them.
func TestCopied(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for name, v := range layouts {
		typ := reflect.TypeOf(v)
		if !numbers(typ) {
			t.Errorf("%s has more than numbers, or a field without a name: such memory must not be copied", name)
		}
		got, want := reflect.New(typ), reflect.New(typ)
		b := make([]byte, binary.Size(v))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if _, err := binary.Decode(b, native, want.Interface()); err != nil {
			t.Fatal(err)
		}
		if err := Decode(append(b, 1, 2, 3), got.Interface()); err != nil || got.Elem().Interface() != want.Elem().Interface() {
			t.Errorf("%s: got %v, %v, want %v", name, got.Elem(), err, want.Elem())
		}
		if again := Append([]byte("before"), got.Elem().Interface()); !bytes.Equal(again, append([]byte("before"), b...)) {
			t.Errorf("%s: got %x, want before it %x", name, again, b)
		}
		if len(b) > 0 && Decode(b[:len(b)-1], got.Interface()) == nil {
			t.Errorf("%s: a byte is missing, and there is no error", name)
		}
	}
	for _, v := range []any{CMEventResp{}, CMResolveAddrArg{}, CMConnectArg{}, CMAcceptArg{}, CMQueryAddrResp{}, QPAttr{}} {
		p := reflect.New(reflect.TypeOf(v))
		if _, _, ok := memory(p); !ok {
			t.Errorf("%T is not copied: it has gaps", v)
		}
	}
}
