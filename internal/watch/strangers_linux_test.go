//go:build !adverb_portable

package watch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

type change = func(*testing.T, *exec.Cmd)

// envOther is how a test tells its process the other user.
const envOther = "ADVERB_TEST_OTHER"

// tell passes a word, and files from descriptor 3 on, to a process that usertest.In starts.
func tell(word string, files ...*os.File) change {
	return func(_ *testing.T, cmd *exec.Cmd) {
		cmd.Env, cmd.ExtraFiles = append(cmd.Env, envOther+"="+word), files
	}
}

// A program answers its own user and root, and nobody else.
func TestServerStrangers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  []change
		answers map[int]bool // by the client's user
	}{
		{"root", nil, map[int]bool{0: true, usertest.Somebody: false, usertest.Nobody: false}},
		{"user", []change{usertest.As(usertest.Somebody)}, map[int]bool{0: true, usertest.Somebody: true, usertest.Nobody: false}},
		{"unmapped", []change{usertest.Namespace()}, map[int]bool{0: false, usertest.Somebody: false, usertest.Nobody: false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if name := os.Getenv(envOther); name != "" {
				asked, ready := os.NewFile(3, "asked"), os.NewFile(4, "ready")
				s, err := serve(name, func(Want) Process { return Process{} })
				if err != nil {
					t.Fatal(err)
				}
				defer s.close()
				ready.Write([]byte{1})
				io.Copy(io.Discard, asked) // until all have asked
				return
			}
			usertest.NeedsRoot(t)
			name := fmt.Sprintf("@adverb/test/%d/%s", os.Getpid(), tt.name)
			asked, done, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer asked.Close()
			starts, ready, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer ready.Close()
			go func() {
				defer done.Close()
				starts.Read(make([]byte, 1))
				for uid, want := range tt.answers {
					usertest.Thread(t, uid, func() {
						if got := say(t, name, "res\n"); (got != "") != want {
							t.Errorf("user %d was answered %q, want an answer: %v", uid, got, want)
						}
					})
				}
			}()
			usertest.In(t, append(tt.change, tell(name, asked, ready))...)
			starts.Close()
		})
	}
}

// strangersListen has a user bind names like those of a user's programs, and listen there without an answer. Every
// tenth socket is full. The sockets last as long as the test.
func strangersListen(t *testing.T, stranger, named, n int) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if need := uint64(2*n + 100); limit.Cur < need {
		limit.Cur, limit.Max = need, max(limit.Max, need)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatalf("%d open files are needed: %v", need, err)
		}
	}
	var fds []int
	usertest.Thread(t, stranger, func() {
		for i := range n {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err == nil {
				fds = append(fds, fd)
				at := &unix.SockaddrUnix{Name: socketName(named, fmt.Sprintf("%d-%s-%d", i, t.Name(), os.Getpid()))}
				err = errors.Join(unix.Bind(fd, at), unix.Listen(fd, i%10))
				for i%10 == 0 && err == nil { // until the socket is full
					c, serr := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
					if err = serr; err == nil {
						fds = append(fds, c)
						if unix.Connect(c, at) != nil {
							break
						}
					}
				}
			}
			if err != nil {
				t.Errorf("socket %d of user %d: %v", i, stranger, err)
				return
			}
		}
	})
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

// Nobody hides the programs of others by names like theirs, however many. The client learns that sockets were not
// asked. The tool once said that no program had a device open.
func TestAskFlood(t *testing.T) {
	const stranger = 23456
	for _, tt := range []struct {
		name    string
		change  []change
		asker   int
		flood   int
		missing string // the text about the stranger
	}{
		{"user", []change{usertest.As(usertest.Somebody)}, usertest.Somebody, 6000, ""},
		{"nobody", []change{usertest.As(usertest.Nobody)}, usertest.Nobody, 100, ""},
		{"root", nil, 0, 100, fmt.Sprintf("of 100 sockets of user %d were not asked", stranger)},
		{"root of a namespace", []change{usertest.Namespace([2]int{0, 1})}, 0, 100, "100 programs were not asked: this user namespace does not map their users"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if os.Getenv(envOther) == "" {
				usertest.NeedsRoot(t)
				strangersListen(t, stranger, tt.asker, tt.flood)
			}
			if !usertest.In(t, append(tt.change, tell("all are there"))...) {
				return
			}
			s, err := serve(socketName(os.Geteuid(), "mine-"+t.Name()), func(Want) Process { return Process{Command: t.Name()} })
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			start := time.Now()
			f, err := findPrograms(listeners(start.Add(listTime)), asksAll())
			if err != nil {
				t.Fatal(err)
			}
			answers, silent := askAll(t.Context(), f, WantStat, start.Add(answerTime+answerTime/2))
			if took := time.Since(start); took > 5*answerTime {
				t.Errorf("asking took %v, want not much more than %v", took, answerTime+answerTime/2)
			}
			if !slices.ContainsFunc(answers, func(p Process) bool { return p.PID == os.Getpid() && p.Command == t.Name() }) {
				t.Errorf("answers %+v, want that of this program among them", answers)
			}
			told := slices.IndexFunc(silent, func(err error) bool {
				return strings.Contains(err.Error(), "TestAskFlood") || strings.Contains(err.Error(), strconv.Itoa(stranger))
			})
			switch {
			case told >= 0 && tt.name != "root": // whose programs the stranger's are
				t.Errorf("the asker hears of the stranger's: %v", silent[told])
			case tt.missing != "" && !slices.ContainsFunc(silent, func(err error) bool { return strings.Contains(err.Error(), tt.missing) }):
				t.Errorf("told %q, want among it %q", silent, tt.missing)
			}
		})
	}
}

// A kernel that does not name the owners of sockets leaves that to the connections: sockets with the user's name are
// asked, and only those of the user are believed.
func TestAskUnlisted(t *testing.T) {
	name := socketName(os.Geteuid(), "mine-"+t.Name())
	s, err := serve(name, func(Want) Process { return Process{Command: t.Name()} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	list := fmt.Sprintf("Num RefCount\n"+
		"0: 00000002 00000000 00010000 0001 01 1 %s\n0: 00000002 00000000 00010000 0001 01 2 %s\n0: 00000003 00000000 00000000 0001 03 3 %s\n",
		name, socketName(os.Geteuid()+1, "other"), socketName(os.Geteuid(), "conversation"))
	f, err := findPrograms(func(f func(user.Socket)) (bool, error) {
		return false, listed(strings.NewReader(list), func(s user.Socket) bool { f(s); return true })
	}, false)
	if err != nil || len(f.users) != 1 || f.users[0].proved || !slices.Equal(f.users[0].names, []string{name}) {
		t.Fatalf("found %+v, %v; want %s alone, unproved", f, err, name)
	}
	if answers, silent := askAll(t.Context(), f, WantStat, time.Now().Add(askTime)); len(answers) != 1 || answers[0].Command != t.Name() || len(silent) != 0 {
		t.Errorf("answers %+v, silent %v, want one answer", answers, silent)
	}
}

// An answer counts only if the program is this user's: a stranger that listens at such a name is not believed.
func TestAskStranger(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change []change
		asker  int
	}{{"user", []change{usertest.As(usertest.Somebody)}, usertest.Somebody}, {"root of a namespace", []change{usertest.Namespace([2]int{0, 1})}, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			name := os.Getenv(envOther)
			if !usertest.Inside(t) {
				name = socketName(tt.asker, fmt.Sprintf("%d-%s", os.Getpid(), t.Name()))
				usertest.Thread(t, usertest.Nobody, func() {
					l, err := net.Listen("unix", name)
					if err != nil {
						t.Error(err)
						return
					}
					t.Cleanup(func() { l.Close() })
					go func() {
						for c, err := l.Accept(); err == nil; c, err = l.Accept() {
							io.WriteString(c, `{"command": "a lie"}`)
							c.Close()
						}
					}()
				})
			}
			if !usertest.In(t, append(tt.change, tell(name))...) {
				return
			}
			if p, err := ask(t.Context(), name, WantStat); !errors.Is(err, errNotOurs) {
				t.Errorf("got %+v, %v, want %v", p, err, errNotOurs)
			}
		})
	}
}

// A program of another PID namespace that hangs up is not taken for one that has ended.
func TestEnded(t *testing.T) {
	for pid, want := range map[int]bool{0: false, os.Getpid(): false, 1 << 30: true} { // no system has as many processes
		if got := ended(pid); got != want {
			t.Errorf("process %d has ended: got %v, want %v", pid, got, want)
		}
	}
}

// Users have their programs asked in turns, a few at a time.
func TestTurns(t *testing.T) {
	f, err := findPrograms(func(f func(user.Socket)) (bool, error) {
		for i := range 100 {
			f(user.Socket{Name: socketName(1000, fmt.Sprint(i)), UID: 1000, Owned: true})
		}
		for uid := range uint32(3) {
			f(user.Socket{Name: socketName(0, "x"), UID: 2000 + uid, Owned: true})
		}
		f(user.Socket{Name: "@adverb/other", UID: 0, Owned: true})
		return true, nil
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	turns, byUser := f.turns(), map[uint32]int{}
	var order []uint32
	for of, name, ok := turns.next(); ok; of, name, ok = turns.next() {
		if byUser[of.uid]++; byUser[of.uid] > 1 && of.uid != 1000 || !strings.HasPrefix(name, socketDir) {
			t.Fatalf("user %d is asked %d times, at last at %s", of.uid, byUser[of.uid], name)
		}
		order = append(order, of.uid)
	}
	if !slices.Equal(order[:4], []uint32{1000, 2000, 2001, 2002}) || byUser[1000] != askOfUser {
		t.Errorf("asked in the order %v, want each user once before anybody twice, and user 1000 %d times", order, askOfUser)
	}
	f.users[0].asked--
	if of, _, ok := turns.next(); !ok || of.uid != 1000 {
		t.Errorf("an answer has come of user 1000: another is asked: %v, want so", ok)
	}
	for i := range 10 {
		f.users[0].silent = append(f.users[0].silent, fmt.Errorf("pid %d", i))
	}
	f.users[2].silent = []error{errors.New("pid 77")}
	got := fmt.Sprint(f.silence())
	for _, want := range []string{"only a part of it was looked at", "83 of 100 sockets of user 1000 were not asked", "pid 7 and 2 more of user 1000", "pid 77"} {
		if !strings.Contains(got, want) {
			t.Errorf("told %s, want %q", got, want)
		}
	}
	for range told {
		f.users = append(f.users, &owned{names: []string{"x"}, all: 1})
	}
	if all := f.silence(); len(all) != told+1 || !strings.Contains(all[told].Error(), "more words") {
		t.Errorf("%d things are told, want %d and how many more there are", len(all), told)
	}
}
