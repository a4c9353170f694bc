package user

import (
	"bytes"
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A kernel that does not list sockets is asked again after a while only. Other failures do not count.
func TestUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at atomic.Pointer[time.Time]
		asked := 0
		answers := []error{unix.EAGAIN, ErrUnlisted, nil}
		ask := func() error {
			return unlessUnlisted(&at, func() error { asked++; return answers[asked-1] })
		}
		for i, c := range []struct {
			wait  time.Duration
			want  error
			asked int
		}{
			{0, unix.EAGAIN, 1}, {0, ErrUnlisted, 2}, {unlistedTime - 1, ErrUnlisted, 2}, {1, nil, 3},
		} {
			time.Sleep(c.wait)
			if err := ask(); err != c.want || asked != c.asked {
				t.Errorf("%d: got %v after %d questions, want %v after %d", i, err, asked, c.want, c.asked)
			}
		}
	})
}

// A socket is nobody's where the kernel does not tell.
func TestUntoldSocket(t *testing.T) {
	uid := uint32(os.Geteuid())
	for _, s := range []Socket{{Name: "@x", UID: uid}, {Name: "@x", UID: uid + 1}} {
		if s.Mine() || s.Others() {
			t.Errorf("%+v is mine: %v, another's: %v; want neither", s, s.Mine(), s.Others())
		}
	}
}

// appendSocket encodes a socket for decodeSocket, as Linux does.
func appendSocket(b []byte, s Socket) []byte {
	attr := func(typ uint16, data []byte) {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = append(b, data...)
		b = append(b, make([]byte, -len(data)&3)...)
	}
	b = append(b, unix.AF_UNIX, unix.SOCK_DGRAM, 7, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(s.Inode))
	b = append(b, make([]byte, 8)...)
	attr(0, append([]byte{0}, s.Name[1:]...))
	if s.Owned {
		attr(7, binary.NativeEndian.AppendUint32(nil, s.UID))
	}
	return b
}

// FuzzDecodeSocket: a socket that counts has an abstract name that was in the message, and decodes to the same when
// it is encoded again.
func FuzzDecodeSocket(f *testing.F) {
	for _, s := range []Socket{{"@adverb/qpn/1", 5, 0, true}, {"@adverb/svc/10.0.0.1/7/0123456789abcdef", 6, 0, false}, {"@x", 1, 1<<32 - 2, true}} {
		f.Add(appendSocket(nil, s))
	}
	f.Add(append(appendSocket(nil, Socket{"@adverb/gsi/1", 5, 0, true}), 3, 0, 0, 0)) // an attribute that is cut short
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := decodeSocket(unix.SOCK_DGRAM, b)
		if !ok {
			return
		}
		if s.Name[0] != '@' || !bytes.Contains(b, append([]byte{0}, s.Name[1:]...)) || int64(s.Inode) > 1<<32-1 || !s.Owned && s.UID != 0 {
			t.Fatalf("%x is decoded as %+v, want its content", b, s)
		}
		if len(s.Name) < 1<<15 {
			if again, ok := decodeSocket(unix.SOCK_DGRAM, appendSocket(nil, s)); !ok || again != s {
				t.Errorf("%+v is decoded again as %+v, %v, want the same", s, again, ok)
			}
		}
	})
}
