package user_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

const envName = "ADVERB_TEST_NAMES" // the sockets' names begin with its value

// witness has the things of a user for a process to judge: a socket that listens, a mailbox, and a message.
type witness struct {
	uid  int
	name string
}

// leave makes the things of a witness, for as long as the test lasts. It returns the end of a pair of sockets at
// which the witness's message waits.
func (w witness) leave(t *testing.T) *os.File {
	t.Helper()
	var files []*os.File
	usertest.Thread(t, w.uid, func() {
		for _, s := range []struct {
			typ  int
			name string
		}{{unix.SOCK_STREAM, w.name}, {unix.SOCK_DGRAM, w.name}} {
			fd, err := unix.Socket(unix.AF_UNIX, s.typ|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				files = append(files, os.NewFile(uintptr(fd), "witness"))
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: s.name})
			}
			if err == nil && s.typ == unix.SOCK_STREAM {
				err = unix.Listen(fd, 8)
			}
			if err != nil {
				t.Errorf("socket of user %d: %v", w.uid, err)
			}
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		for _, fd := range pair {
			files = append(files, os.NewFile(uintptr(fd), "witness"))
		}
		if err := errors.Join(unix.SetsockoptInt(pair[1], unix.SOL_SOCKET, unix.SO_PASSCRED, 1), unix.Sendto(pair[0], []byte("hello"), 0, nil)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		for _, f := range files {
			f.Close()
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return files[len(files)-1]
}

// judge returns the process's verdict on the witness by its listening socket, by its message, and by the kernel's
// list.
func judge(t *testing.T, name string, message *os.File) (all [3]error) {
	t.Helper()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, err := user.PeerOfConn(c.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	all[0] = p.Check()
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	_, oobn, _, _, err := unix.Recvmsg(int(message.Fd()), b, oob, 0)
	if err == nil {
		p, err = user.SenderOf(oob[:oobn])
	}
	if err != nil {
		t.Fatal(err)
	}
	all[1] = p.Check()
	all[2] = errors.New("not in the list")
	if err := user.EachSocket(user.Listening, func(s user.Socket) bool {
		if s.Name == name {
			all[2] = user.Check(s.UID)
			if s.Mine() != (all[2] == nil) || s.Others() != errors.Is(all[2], user.ErrOther) {
				t.Errorf("the list's socket %+v is mine: %v, another's: %v; want it as %v", s, s.Mine(), s.Others(), all[2])
			}
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// A process believes only evidence that shows its own user beyond doubt: not the number that stands for all users
// that its namespace does not map. A process that ran as that number once took anybody for itself.
func TestNamespaces(t *testing.T) {
	as := usertest.As
	for _, tt := range []struct {
		name      string
		change    []func(*testing.T, *exec.Cmd)
		witnesses map[int]error // by user
		self      error
	}{
		{"none", nil, map[int]error{0: nil, usertest.Nobody: user.ErrOther}, nil},
		{"none, nobody", []func(*testing.T, *exec.Cmd){as(usertest.Nobody)},
			map[int]error{0: user.ErrOther, usertest.Nobody: nil, usertest.Somebody: user.ErrOther}, nil},
		{"all mapped, nobody", []func(*testing.T, *exec.Cmd){usertest.Namespace(usertest.All()), as(usertest.Nobody)},
			map[int]error{0: user.ErrOther, usertest.Nobody: nil, usertest.Somebody: user.ErrOther}, nil},
		{"none mapped", []func(*testing.T, *exec.Cmd){usertest.Namespace()},
			map[int]error{0: user.ErrUnmapped, usertest.Nobody: user.ErrUnmapped, usertest.Somebody: user.ErrUnmapped}, user.ErrUnmapped},
		{"some mapped, nobody", []func(*testing.T, *exec.Cmd){usertest.Namespace([2]int{0, 1000}, [2]int{usertest.Nobody, 1}), as(usertest.Nobody)},
			map[int]error{0: user.ErrOther, usertest.Nobody: user.ErrUnmapped, usertest.Somebody: user.ErrUnmapped}, user.ErrUnmapped},
		{"some mapped, one of them", []func(*testing.T, *exec.Cmd){usertest.Namespace([2]int{0, 20000}), as(usertest.Somebody)},
			map[int]error{0: user.ErrOther, usertest.Nobody: user.ErrUnmapped, usertest.Somebody: nil}, nil},
		{"root of a namespace", []func(*testing.T, *exec.Cmd){usertest.Namespace([2]int{0, 1})},
			map[int]error{0: nil, usertest.Nobody: user.ErrUnmapped, usertest.Somebody: user.ErrUnmapped}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			prefix := os.Getenv(envName)
			if prefix == "" {
				prefix = fmt.Sprintf("@adverb/test/%d/", os.Getpid())
			}
			uids := []int{0, usertest.Nobody, usertest.Somebody}
			var messages []*os.File
			if os.Getenv(envName) == "" {
				usertest.NeedsRoot(t)
				for _, uid := range uids {
					messages = append(messages, witness{uid, fmt.Sprint(prefix, uid)}.leave(t))
				}
			}
			pass := func(_ *testing.T, cmd *exec.Cmd) {
				cmd.Env, cmd.ExtraFiles = append(cmd.Env, envName+"="+prefix), messages
			}
			if !usertest.In(t, append(tt.change, pass)...) {
				return
			}
			if err := user.Self(); !errors.Is(err, tt.self) || (err == nil) != (tt.self == nil) {
				t.Errorf("of itself: got %v, want %v", err, tt.self)
			}
			for i, uid := range uids {
				want, ok := tt.witnesses[uid]
				if !ok {
					continue
				}
				for j, got := range judge(t, fmt.Sprint(prefix, uid), os.NewFile(uintptr(3+i), "message")) {
					if !errors.Is(got, want) || (got == nil) != (want == nil) {
						t.Errorf("of user %d, by its %s: got %v, want %v", uid, []string{"socket", "message", "entry in the list"}[j], got, want)
					}
				}
			}
		})
	}
}

// Only the kernel's word names the sender of a message.
func TestSenderOf(t *testing.T) {
	cred := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid())})
	for name, oob := range map[string][]byte{
		"nothing": nil, "descriptors": unix.UnixRights(0), "credentials cut short": cred[:len(cred)-8], "two": append(cred[:len(cred):len(cred)], cred...),
	} {
		if p, err := user.SenderOf(oob); err == nil {
			t.Errorf("%s: got %+v, want an error", name, p)
		}
	}
	if p, err := user.SenderOf(cred); err != nil || p.PID != os.Getpid() || p.UID != uint32(os.Geteuid()) {
		t.Errorf("credentials: got %+v, %v, want this process", p, err)
	}
}
