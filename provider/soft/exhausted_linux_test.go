//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// envExhausted makes the tests run that exhaust the resources of their own process.
const envExhausted = "ADVERB_TEST_EXHAUSTED"

func runExhausted(t *testing.T, name string) {
	runTestInside(t, name, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envExhausted+"="+loopAddr(30)) })
}

// With ever so few file descriptors, every call either works or says that there are too many open
// files. A call that fails leaves none open, and with enough descriptors all works again.
func TestDescriptorsExhausted(t *testing.T) { runExhausted(t, "TestDescriptorsExhaustedInside") }

func TestDescriptorsExhaustedInside(t *testing.T) {
	at := os.Getenv(envExhausted)
	if at == "" {
		t.Skip("TestDescriptorsExhausted runs this one")
	}
	name := loopback(t) + "@" + at
	if err := useAll(t, name); err != nil { // opens the files that the runtime keeps open
		t.Fatal(err)
	}
	base := openFiles(t, 1<<20)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	failed := map[string]bool{}
	for n := uint64(0); ; n++ {
		if n > uint64(base)+200 {
			t.Fatalf("%d descriptors do not suffice, want them to", n)
		}
		setFiles(t, n, limit.Max)
		err := useAll(t, name)
		setFiles(t, limit.Cur, limit.Max)
		if got := openFiles(t, base); got > base {
			t.Fatalf("of %d descriptors: %d are open after %v, want the %d of before", n, got, err, base)
		}
		if err == nil {
			t.Logf("%d descriptors suffice; with fewer:\n%s", n, strings.Join(keys(failed), "\n"))
			break
		}
		if !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("of %d descriptors: %v, want an error that says that too many files are open", n, err)
		}
		failed[err.Error()] = true
	}
	if len(failed) < 3 {
		t.Errorf("only these calls have failed: %v, want that each was tried", keys(failed))
	}
	if err := useAll(t, name); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func keys(m map[string]bool) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

func setFiles(t *testing.T, n, most uint64) {
	t.Helper()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: most}); err != nil {
		t.Fatal(err)
	}
}

// openFiles returns how many descriptors are open, once they are no more than want or a while has passed.
func openFiles(t *testing.T, want int) int {
	t.Helper()
	for limit := time.Now().Add(settle); ; runtime.Gosched() {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		if len(files) <= want || time.Now().After(limit) {
			return len(files)
		}
	}
}

// useAll opens a device, listens on it, connects to it, and has memory read by the peer. It returns the
// first error. It leaves nothing open.
func useAll(t *testing.T, name string) (err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	closing := func(c interface{ Close() error }) {
		if e := c.Close(); e != nil {
			t.Errorf("after %v: %v", err, e)
		}
	}
	dev, err := verbs.Open(name)
	if err != nil {
		return err
	}
	defer closing(dev)
	_, at, _ := strings.Cut(name, "@")
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(at), 0))
	if err != nil {
		return err
	}
	defer closing(l)
	accepted, refused := make(chan *rdmacm.Conn, 1), make(chan error, 1)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err != nil {
			refused <- err
			return
		}
		c, err := r.Accept(ctx, nil)
		if err != nil {
			refused <- err
			stop(err)
			return
		}
		accepted <- c
	}()
	x, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(ctx, l.Addr(), nil)
	if err != nil {
		stop(err)
		<-accepted
		select {
		case cause := <-refused: // which this end calls a rejection
			return errors.Join(err, cause)
		default:
			return err
		}
	}
	defer closing(x)
	y := <-accepted
	if y == nil {
		return <-refused
	}
	defer closing(y)
	src, err := x.PD().AllocMR(1<<20, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer closing(src)
	dst, err := y.PD().AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer closing(dst)
	if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 1<<20)}, Remote: dst.Remote(0)}}); err != nil {
		return err
	}
	var wc [1]verbs.WC
	if _, err := x.SendCQ().Wait(ctx, wc[:]); err != nil {
		return err
	}
	return wc[0].Err()
}

// With a bound on the address space, AllocMR fails clearly while the rest of the program still has
// memory: the connection works on, and memory that is given back can be had again.
func TestAddressSpaceExhausted(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes address space of its own, as it goes")
	}
	runExhausted(t, "TestAddressSpaceExhaustedInside")
}

func TestAddressSpaceExhaustedInside(t *testing.T) {
	at := os.Getenv(envExhausted)
	if at == "" {
		t.Skip("TestAddressSpaceExhausted runs this one")
	}
	name := loopback(t) + "@" + at
	if err := useAll(t, name); err != nil {
		t.Fatal(err)
	}
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	const piece, room = 8 << 20, 256 << 20
	limit := limitAddresses(t, room)
	var mrs []*verbs.MR
	for round := range 2 {
		for {
			mr, err := pd.AllocMR(piece, verbs.AccessLocalWrite)
			if err != nil {
				if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprintf("RLIMIT_AS is %d bytes", limit)) || !strings.Contains(err.Error(), "ulimit -v") {
					t.Errorf("%v, want %v that names RLIMIT_AS and how to raise it", err, verbs.ErrLimit)
				}
				break
			}
			mrs = append(mrs, mr)
			if len(mrs) > room/piece {
				t.Fatalf("%d MiB allocated, want no more than %d", len(mrs)*piece>>20, room>>20)
			}
		}
		if len(mrs) < 4 {
			t.Fatalf("round %d: %d regions, want 4 at least", round, len(mrs))
		}
		// Room for those that follow, and for Go's runtime meanwhile: up to 64 MiB at once.
		rest := len(mrs) - 1
		for _, mr := range mrs[:rest] {
			if err := mr.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := useAll(t, name); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
		for _, mr := range mrs[rest:] {
			if err := mr.Close(); err != nil {
				t.Fatal(err)
			}
		}
		mrs = mrs[:0]
	}
}

// With a bound on the address space, queues and connections fail clearly too, where Go's runtime would end the
// program for want of memory. Queues that are closed make room for others. The heap gives no addresses back,
// so regions may have too few for good.
func TestQueuesExhausted(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector takes address space of its own, as it goes")
	}
	runExhausted(t, "TestQueuesExhaustedInside")
}

func TestQueuesExhaustedInside(t *testing.T) {
	at := os.Getenv(envExhausted)
	if at == "" {
		t.Skip("TestQueuesExhausted runs this one")
	}
	name := loopback(t) + "@" + at
	if err := useAll(t, name); err != nil {
		t.Fatal(err)
	}
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	cq, err := dev.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Close()
	attr, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 16, MaxSGE: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer srq.Close()
	large := verbs.QPCap{MaxSendWR: attr.MaxQPWR, MaxRecvWR: attr.MaxQPWR, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 256}
	limit := limitAddresses(t, 512<<20)
	refusal := func(what string, err error) {
		if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprintf("RLIMIT_AS is %d bytes", limit)) || !strings.Contains(err.Error(), "ulimit -v") {
			t.Errorf("%s: %v, want %v that names RLIMIT_AS and how to raise it", what, err, verbs.ErrLimit)
		}
	}
	for what, create := range map[string]func() (interface{ Close() error }, error){
		"CQ": func() (interface{ Close() error }, error) { return dev.CreateCQ(attr.MaxCQE / 16) },
		"SRQ": func() (interface{ Close() error }, error) {
			return pd.CreateSRQ(verbs.SRQAttr{MaxWR: attr.MaxSRQWR, MaxSGE: 4})
		},
		"QP": func() (interface{ Close() error }, error) {
			return pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: large})
		},
	} {
		for round := range 2 {
			var made []interface{ Close() error }
			for {
				o, err := create()
				if err != nil {
					refusal(what, err)
					break
				}
				if made = append(made, o); len(made) > 10_000 {
					t.Fatalf("%s: no bound is met, want one below 10000", what)
				}
			}
			if what == "SRQ" {
				refusal("an SRQ that grows", srq.Modify(verbs.SRQAttr{MaxWR: attr.MaxSRQWR}, verbs.SRQMaskMaxWR))
			}
			if len(made) < 2 {
				t.Errorf("%s, round %d: %d were made, want 2 at least", what, round, len(made))
			}
			for _, o := range made {
				if err := o.Close(); err != nil {
					t.Fatal(err)
				}
			}
			made = nil
			if err := useAll(t, name); err != nil {
				refusal("a connection afterwards", err)
			}
		}
	}
	refusal("resize", cq.Resize(attr.MaxCQE))
}

// limitAddresses leaves the process so much more address space than it uses, and returns the limit.
func limitAddresses(t *testing.T, room uint64) (limit uint64) {
	t.Helper()
	var used uint64
	if text, err := os.ReadFile("/proc/self/statm"); err != nil {
		t.Skip(err)
	} else if _, err := fmt.Sscan(string(text), &used); err != nil {
		t.Fatal(err)
	}
	limit = used*uint64(os.Getpagesize()) + room
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	return limit
}
