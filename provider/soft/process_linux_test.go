//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// These are tests of several processes at one address. The test binary runs itself as each of them,
// a member.

var (
	soak     = flag.Duration("soak", 2*time.Second, "how long the processes of a test exchange messages")
	seedFlag = flag.Uint64("seed", 0, "the seed of what the tests of processes choose at random; 0 takes a new one each time")
)

// newRand returns a source of random choices, and prints its seed.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d; to repeat its choices: -args -seed=%[1]d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// patience is how long a step of a test may take on a busy machine.
const patience = 60 * time.Second

// loopRetry makes a connection fail after a second or two without a sign of life.
var loopRetry = verbs.Retry{Timeout: 15, RetryCount: 7, RNRRetryCount: 7}

// patientRetry makes a connection fail after 4.3 s without a sign of life. It is for tests in which
// connections outlive pauses of other processes, which may be long: on a machine with ten times as
// many runnable threads as cores a process that lives may not run for half a second.
var patientRetry = verbs.Retry{Timeout: 17, RetryCount: 7, RNRRetryCount: 7}

// process is a member, or another process that a test has started.
type process struct {
	t       *testing.T
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	reports chan report
	stderr  bytes.Buffer
	ended   chan struct{}   // closed when the process has ended and its output is read
	news    chan<- struct{} // cap 1: there is a report to read, or the process has ended
	address address
	failed  []failure
}

// start runs a member with a device.
func start(t *testing.T, name, device string, change ...func(*exec.Cmd)) *process {
	t.Helper()
	return startWithNews(t, name, device, make(chan struct{}, 1), change...)
}

// startWithNews is start for tests that wait for a report of any of several processes: news, which
// is of capacity 1, receives a value when there is one.
func startWithNews(t *testing.T, name, device string, news chan<- struct{}, change ...func(*exec.Cmd)) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, cmd: exec.Command(exe), reports: make(chan report, 1024), ended: make(chan struct{}), news: news}
	p.cmd.Env = append(os.Environ(), envMember+"="+device)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	for _, f := range change {
		f(p.cmd)
	}
	p.in, err = p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.orders = json.NewEncoder(p.in)
	go func() {
		d := json.NewDecoder(out)
		for {
			var r report
			if d.Decode(&r) != nil {
				break
			}
			p.reports <- r
			p.tell()
		}
		p.cmd.Wait()
		close(p.ended)
		p.tell()
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	for {
		select {
		case <-p.ended:
			return
		case <-p.reports:
		}
	}
}

func (p *process) signal(s syscall.Signal) { p.cmd.Process.Signal(s) }

func (p *process) order(o order) {
	if err := p.orders.Encode(o); err != nil {
		p.t.Fatalf("%s: %v\n%s", p.name, err, p.stderr.String())
	}
}

// await reads reports up to the one that is wanted, and returns that. It remembers the failures of
// connections. Anything that ought never to happen ends the test.
func (p *process) await(what string, wanted func(*report) bool) report {
	p.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		select {
		case r := <-p.reports:
			if p.note(&r); wanted(&r) {
				return r
			}
			continue
		default:
		}
		select {
		case r := <-p.reports:
			if p.note(&r); wanted(&r) {
				return r
			}
		case <-p.ended:
			if len(p.reports) == 0 {
				p.t.Fatalf("%s ended, want it %s: %v\n%s", p.name, what, p.cmd.ProcessState, p.stderr.String())
			}
		case <-timeout.C:
			p.signal(syscall.SIGQUIT) // it prints the stacks of its goroutines
			select {
			case <-p.ended:
				p.t.Fatalf("%s is not %s after %v; its failures: %v\n%s", p.name, what, patience, p.failed, p.stderr.String())
			case <-time.After(patience):
				p.t.Fatalf("%s is not %s after %v, and does not end; its failures: %v", p.name, what, patience, p.failed)
			}
		}
	}
}

func (p *process) note(r *report) {
	if r.Wrong != "" {
		p.t.Fatalf("%s: %s", p.name, r.Wrong)
	}
	if r.Failed != nil {
		p.failed = append(p.failed, *r.Failed)
	}
}

func (p *process) awaitAddress() {
	p.t.Helper()
	p.address = *p.await("open", func(r *report) bool { return r.Address != nil }).Address
}

// team is several members. Each exchanges messages with each other one.
type team []*process

// startTeam starts n members, and connects each with each.
func startTeam(t *testing.T, device string, n int, o order, change ...func(*exec.Cmd)) team {
	t.Helper()
	var ms team
	for i := range n {
		ms = append(ms, start(t, "member "+string(rune('A'+i)), device, change...))
	}
	o.Connect = true
	for _, p := range ms {
		p.awaitAddress()
		o.Peers = append(o.Peers, p.address)
	}
	for i, p := range ms {
		o.Self = i
		p.order(o)
	}
	for _, p := range ms {
		r := p.await("exchanging messages", func(r *report) bool { return r.Started || r.NoGroup != "" })
		if strings.Contains(r.NoGroup, "unsupported") || strings.Contains(r.NoGroup, "no such device") {
			t.Skip(r.NoGroup)
		}
		if r.NoGroup != "" {
			t.Fatal(r.NoGroup)
		}
	}
	return ms
}

// finish makes all members send their last messages. It returns the sum of their counts, once
// everything that was sent has arrived.
func (ms team) finish() (sum count) {
	for _, p := range ms {
		p.t.Helper()
		p.order(order{Stop: true})
	}
	for _, p := range ms {
		p.await("done", func(r *report) bool { return r.Done })
	}
	for _, p := range ms {
		p.order(order{Quit: true})
	}
	for _, p := range ms {
		c := p.await("finished", func(r *report) bool { return r.Count != nil }).Count
		sum.RCSent += c.RCSent
		sum.RCReceived += c.RCReceived
		sum.UDAnswered += c.UDAnswered
		sum.UDRepeated += c.UDRepeated
		sum.McastSent += c.McastSent
		sum.McastReceived += c.McastReceived
		<-p.ended
		if !p.cmd.ProcessState.Success() {
			p.t.Errorf("%s: %v\n%s\nwant success", p.name, p.cmd.ProcessState, p.stderr.String())
		}
	}
	return sum
}

// unhurt fails the test if a connection has failed.
func (ms team) unhurt() {
	for _, p := range ms {
		p.t.Helper()
		if len(p.failed) > 0 {
			p.t.Errorf("%s: connections failed: %v, want none", p.name, p.failed)
		}
	}
}
