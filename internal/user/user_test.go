package user

import (
	"errors"
	"os"
	"testing"
)

// The user that this process takes for its own depends on the users that its namespace can tell apart.
func TestView(t *testing.T) {
	for _, tt := range []struct {
		v         view
		uid, self uint32
		want      error
	}{
		{view{65534, true}, 1000, 1000, nil},
		{view{65534, true}, 1000, 1001, ErrOther},
		{view{65534, true}, 65534, 65534, nil}, // nobody is a user like others where all are mapped
		{view{65534, true}, 65534, 1000, ErrOther},
		{view{65534, false}, 1000, 1000, nil},
		{view{65534, false}, 0, 0, nil},
		{view{65534, false}, 0, 1000, ErrOther},
		{view{65534, false}, 65534, 65534, ErrUnmapped},
		{view{65534, false}, 65534, 1000, ErrUnmapped},
		{view{65534, false}, 1000, 65534, ErrOther},
		{view{1000, false}, 1000, 1000, ErrUnmapped}, // an administrator has chosen the number
		{view{0, false}, 0, 0, ErrUnmapped},
	} {
		if got := tt.v.check(tt.uid, tt.self); !errors.Is(got, tt.want) || (got == nil) != (tt.want == nil) {
			t.Errorf("%+v: is %d user %d: got %v, want %v", tt.v, tt.uid, tt.self, got, tt.want)
		}
	}
}

// This process knows itself, wherever the tests run.
func TestSelf(t *testing.T) {
	uid := uint32(os.Geteuid())
	if err := Self(); (err == nil) != Known(uid) || !errors.Is(Check(uid), err) {
		t.Errorf("this process's user: %v, and its number is known: %v, want nil and true, or neither", err, Known(uid))
	}
	if err := Check(uid + 1); err == nil {
		t.Errorf("user %d is taken for %d, want an error", uid+1, uid)
	}
}
