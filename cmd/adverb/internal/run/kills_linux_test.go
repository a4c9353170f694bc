//go:build amd64 || arm64

package run

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

var (
	killsFlag    = flag.Int("kills", 15, "how many runs TestKills kills, in each of its two forms")
	killSeedFlag = flag.Uint64("killseed", 0, "the seed of TestKills (default another each time)")
)

// killed names the processes of a family.
var killed = [...]string{"starter", "supervisor", "reaper", "program"}

// These are variables of the environment by which the processes of a run are found. Runs with different settings of adverb
// share no supervisor.
const (
	markApart  = "ADVERB_TEST_KILLED"
	markShared = "TEST_KILLED"
)

// marked returns the processes of this host that have the mark.
func marked(mark string) map[int]string {
	all := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, n := range names {
		env, err := os.ReadFile(n + "/environ") // that of a zombie is empty
		if err != nil || !bytes.Contains(env, []byte(mark)) {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimPrefix(n, "/proc/")); err == nil {
			line, _ := os.ReadFile(n + "/cmdline")
			all[pid] = string(line)
		}
	}
	return all
}

// gone waits until no process has the mark.
func gone(t *testing.T, mark string) {
	t.Helper()
	for end := time.Now().Add(tooltest.Patience); ; {
		all := marked(mark)
		if len(all) == 0 {
			return
		}
		for pid := range all {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
			unix.Close(fd)
		}
		if time.Now().After(end) {
			t.Fatalf("processes that have not ended: %q", slices.Collect(maps.Values(all)))
		}
	}
}

// descriptors returns the open files of a process.
func descriptors(pid int) (all []string) {
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, n := range names {
		if to, err := os.Readlink(n); err == nil {
			all = append(all, to)
		}
	}
	return all
}

// settles waits until a process has no more open files than it had. Its sockets for a process that is gone close when they
// have been idle for some seconds.
func settles(t *testing.T, pid int, had []string) {
	t.Helper()
	for end := time.Now().Add(tooltest.Patience); ; {
		has := descriptors(pid)
		if len(has) <= len(had) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the peer's supervisor has %d open files, and had %d\nhas %q\nhad %q", len(has), len(had), has, had)
		}
		pass(10 * time.Millisecond)
	}
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

// left returns the entries of directories.
func left(dirs ...string) (all []string) {
	for _, d := range dirs {
		entries, _ := os.ReadDir(d)
		for _, e := range entries {
			all = append(all, filepath.Join(d, e.Name()))
		}
	}
	return all
}

// TestKills kills a process of a run at a random instant, again and again, while its program and a peer write to each
// other: the program, the starter, the supervisor or the reaper. Nothing is left of the run, and the peer's QP ends in its
// retries. The peer's supervisor serves the run too, or it does not.
func TestKills(t *testing.T) {
	needSupervisor(t)
	t.Run("apart", func(t *testing.T) { kills(t, markApart) })
	t.Run("shared", func(t *testing.T) { kills(t, markShared) })
}

func kills(t *testing.T, mark string) {
	seed := *killSeedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	n := *killsFlag
	if testing.Short() {
		n = min(n, 4)
	}
	t.Logf("-killseed %d", seed)
	// The host's other processes that have devices come and go, and the peer's supervisor has descriptors for them.
	if !usertest.In(t, usertest.Network, func(_ *testing.T, cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args, fmt.Sprintf("-kills=%d", n), fmt.Sprintf("-killseed=%d", seed), "-test.timeout=0")
	}) {
		return
	}
	if err := linktest.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	dice := rand.New(rand.NewPCG(seed, 0))
	temp, own := t.TempDir(), t.TempDir()
	y := startPeer(t, "TMPDIR="+own, "XDG_RUNTIME_DIR=")
	contact := y.line()
	supervisor := familyOf(y.cmd.Process.Pid)[supervisorProcess]
	ofPeer := left(own)

	// round has a run meet the peer. It returns when the run has been killed, and says by the death of which process.
	var took, longest time.Duration // until a run is under way; until the peer's QP ends
	round := func(i int) string {
		t.Helper()
		mark := fmt.Sprintf("%s=%d-%d.", mark, os.Getpid(), i)
		begun := time.Now()
		x := startPeer(t, mark, "TMPDIR="+temp, "XDG_RUNTIME_DIR=")
		under, met := make(chan string, 1), make(chan bool, 1)
		go func() {
			line, ok := <-x.lines
			if ok {
				y.tell(line)
				x.tell(contact)
				<-y.lines // "connected"
				<-x.lines // or the end of a run that has been killed
				x.tell("go")
				y.tell("go")
			}
			met <- ok
			under <- <-x.lines
		}()
		victim := dice.IntN(len(killed))
		early := i >= 0 && dice.IntN(2) == 0
		at := time.Duration(dice.Int64N(int64(20*time.Millisecond + took)))
		if !early {
			select {
			case line := <-under:
				if line != "running" {
					t.Fatalf("round %d: got line %q, want that it runs\n%s\n%s", i, line, x.said(), y.said())
				}
			case <-time.After(tooltest.Patience):
				t.Fatalf("round %d: the run does not begin", i)
			}
			took = time.Since(begun)
			at = time.Duration(dice.Int64N(int64(20 * time.Millisecond)))
		}
		pass(at)
		f := familyOf(x.cmd.Process.Pid)
		for f[victim] == 0 {
			victim--
		}
		what := fmt.Sprintf("round %d: %s, %v after the start", i, killed[victim], time.Since(begun))
		unix.Kill(f[victim], unix.SIGKILL)
		at = time.Since(begun)
		select {
		case <-x.end:
		case <-time.After(tooltest.Patience):
			t.Fatalf("%s: the starter does not end", what)
		}
		gone(t, mark)
		if <-met {
			for line := y.line(); !strings.HasPrefix(line, "ended "); line = y.line() {
				if line != "running" {
					t.Fatalf("%s: the peer says %q\n%s", what, line, y.said())
				}
			}
			longest = max(longest, time.Since(begun)-at)
			contact = y.line()
		}
		if all := left(temp); len(all) > 0 {
			t.Fatalf("%s: left behind: %q", what, all)
		}
		return killed[victim]
	}

	shared := left("/dev/shm")
	round(-2) // what the peer has once
	round(-1)
	had := descriptors(supervisor)
	count := map[string]int{}
	for i := range n {
		count[round(i)]++
	}
	settles(t, supervisor, had)
	for _, name := range left("/dev/shm") {
		if !slices.Contains(shared, name) && strings.Contains(name, "adverb") {
			t.Errorf("left behind: %s", name)
		}
	}
	if all := left(own); len(all) > len(ofPeer) {
		t.Errorf("left behind by the peer: %q", all)
	}
	t.Logf("killed %v; a run is under way after %v; a peer's QP ended %v after a kill at most", count, took, longest)
}
