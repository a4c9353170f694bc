// Package killtest starts the examples as processes and kills them.
//
// The processes are the test binary itself, which runs the example's main function when an
// environment variable says so. They tell the test what happens by lines of text: see the constants.
package killtest

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Texts that the examples print.
const (
	Listening = "listening on "   // a server, and its address
	Connected = "connected from " // a client, with its own address
	Arrived   = "client arrived: "
	PeerGone  = "client gone: " // a server, with the client's address and the cause
	Gone      = "server gone: " // a client, with the cause
	Progress  = "progress: "    // a client, now and then
)

// Documented is within what time a survivor hears of a death: the examples' keep-alive, twice, and the
// retries of the QP.
const Documented = 2*time.Second + 8*134*time.Millisecond

// Told is how long the test waits for a survivor to be told. The test fails before if the survivor takes
// longer than Documented and the time for which the survivor and the test were ready to run and had no core.
const Told = 15 * time.Second

// patience is how long anything else may take.
const patience = time.Minute

var (
	kills = flag.Int("kills", 20, "how many processes the tests of kills kill")
	seed  = flag.Uint64("seed", 0, "the seed of the kills; 0 is a random one")
)

const beMain = "ADVERB_EXAMPLE_MAIN"

// Main is for TestMain to call: Main runs main in a process that Start has started.
func Main(m *testing.M, main func()) {
	if os.Getenv(beMain) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Addr returns a loopback address that other tests are not likely to use.
func Addr(i int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64|pid>>8&63, pid&255, i)
}

// Process is a process of the example.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}

	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed at the next line
	err     error         // of Wait
}

// Start starts the example with arguments. The process is killed at the end of the test.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), beMain+"=1")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.add(s.Text())
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.Kill)
	return p
}

func (p *Process) add(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Kill kills the process as kill -9 does, and waits until the process is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that the process has ended
	<-p.done
}

// Wait waits until the process ends, and returns the output of the process.
func (p *Process) Wait() (string, error) {
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%q does not end; it printed:\n%s", p.cmd.Args[1:], p.Output())
	}
	return p.Output(), p.err
}

// Output returns the text that the process has printed so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// Mark returns a point in the output: Line searches behind it.
func (p *Process) Mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// after returns the point behind the last line with a text.
func (p *Process) after(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.lines) - 1; i >= 0; i-- {
		if strings.Contains(p.lines[i], text) {
			return i + 1
		}
	}
	return 0
}

// Line waits for a line with a text behind a mark, and returns the rest of the line after the text.
func (p *Process) Line(mark int, text string, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		p.mu.Lock()
		lines, changed := p.lines[mark:], p.changed
		i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, text) })
		p.mu.Unlock()
		if i >= 0 {
			_, rest, _ := strings.Cut(lines[i], text)
			return rest, nil
		}
		select {
		case <-changed:
		case <-p.done:
			if p.Mark() > mark+len(lines) {
				continue
			}
			return "", fmt.Errorf("%q has ended without %q: %v; it printed:\n%s", p.cmd.Args[1:], text, p.err, p.Output())
		case <-ctx.Done():
			return "", fmt.Errorf("%q does not print %q within %v; its last lines:\n%s", p.cmd.Args[1:], text, limit, p.tail())
		}
	}
}

func (p *Process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-10):], "\n")
}

// MustLine is Line, and fails the test. MustLine is for lines other than those that tell a survivor of a death.
func (p *Process) MustLine(mark int, text string) string {
	p.t.Helper()
	rest, err := p.Line(mark, text, patience)
	if err != nil {
		p.t.Fatal(err)
	}
	return rest
}

// Kills runs a server with clients and kills them at random. After each death every survivor that was
// connected to the dead must print that the survivor was told, and why; then the dead are started
// again, and must be able to connect.
func Kills(t *testing.T, clients int, server func(addr string) []string, client func(addr, local string) []string) {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	n := *kills
	if testing.Short() {
		n = min(n, 4)
	}
	t.Logf("%d kills by seed %d; -seed %d -kills %d repeats them", n, s, s, n)
	r := rand.New(rand.NewPCG(s, 0))
	addr := Addr(1) + ":7471"
	g := &group{t: t, serverArgs: server(addr)}
	for i := range clients {
		g.clients = append(g.clients, &member{args: client(addr, Addr(2+i)), local: Addr(2 + i)})
	}
	g.startServer()
	for _, c := range g.clients {
		g.startClient(c)
	}
	var times []time.Duration
	servers := 0
	for i := range n {
		// Death comes at any point of the programs' work: right after they have connected, or
		// after some progress of one of them.
		watched := g.clients[r.IntN(clients)].p
		for range r.IntN(8) {
			watched.MustLine(watched.Mark(), Progress)
		}
		var took time.Duration
		if r.IntN(4) == 0 {
			servers++
			took = g.killServer()
		} else {
			took = g.killClient(g.clients[r.IntN(clients)])
		}
		times = append(times, took)
		if (i+1)%50 == 0 {
			t.Logf("%d of %d", i+1, n)
		}
	}
	slices.Sort(times)
	t.Logf("%d kills, %d of the server with %d clients; every survivor was told, half within %v, the last after %v",
		n, servers, clients, times[n/2].Round(time.Millisecond), times[n-1].Round(time.Millisecond))
}

type group struct {
	t          *testing.T
	serverArgs []string
	server     *Process
	clients    []*member
}

type member struct {
	args  []string
	local string // its own address
	p     *Process
}

// connection returns the client's latest connection by its address, and whether the connection is in use as
// far as the client knows: on a busy machine connections end without a death, and clients dial again.
func (c *member) connection() (addr string, inUse bool) {
	for line := range strings.Lines(c.p.Output()) {
		if _, at, ok := strings.Cut(strings.TrimSpace(line), Connected); ok {
			addr, inUse = at, true
		} else if strings.Contains(line, Gone) {
			inUse = false
		}
	}
	return addr, inUse
}

func (g *group) startServer() {
	g.server = Start(g.t, g.serverArgs...)
	g.server.MustLine(0, Listening)
}

func (g *group) startClient(c *member) {
	mark := g.server.Mark()
	c.p = Start(g.t, c.args...)
	g.await(c, mark)
}

// await waits until both ends know of a connection that has arrived behind a mark.
func (g *group) await(c *member, mark int) {
	port := g.server.MustLine(mark, Arrived+c.local+":")
	c.p.MustLine(0, Connected+c.local+":"+port)
}

// survivor is a process that is to be told of a death by a line with a text, behind a mark.
type survivor struct {
	p       *Process
	mark    int
	text    string
	starved time.Duration // before the death
}

func (g *group) killClient(c *member) time.Duration {
	start, own, starved := time.Now(), starvation(os.Getpid()), starvation(g.server.pid())
	c.p.Kill()
	var all []survivor
	if addr, inUse := c.connection(); inUse {
		all = append(all, survivor{g.server, g.server.after(Arrived + addr), PeerGone + addr + ": ", starved})
	}
	took := g.told(start, own, all)
	g.startClient(c)
	return took
}

func (g *group) killServer() time.Duration {
	start, own := time.Now(), starvation(os.Getpid())
	starved := map[*member]time.Duration{}
	for _, c := range g.clients {
		starved[c] = starvation(c.p.pid())
	}
	g.server.Kill()
	var all []survivor
	for _, c := range g.clients {
		if addr, inUse := c.connection(); inUse {
			all = append(all, survivor{c.p, c.p.after(Connected + addr), Gone, starved[c]})
		}
	}
	took := g.told(start, own, all)
	g.startServer()
	for _, c := range g.clients { // they dial again by themselves
		g.await(c, 0)
	}
	return took
}

// told waits until each survivor is told, and fails the test for one that is told too late. own is for how
// long the test itself had starved before. told returns when the last survivor was told.
func (g *group) told(start time.Time, own time.Duration, all []survivor) time.Duration {
	g.t.Helper()
	type result struct {
		survivor
		cause         string
		err           error
		took, starved time.Duration
	}
	results := make(chan result)
	for _, s := range all {
		go func() {
			cause, err := s.p.Line(s.mark, s.text, Told)
			took := time.Since(start)
			results <- result{s, cause, err, took, starvation(s.p.pid()) - s.starved + starvation(os.Getpid()) - own}
		}()
	}
	took := time.Since(start)
	for range all {
		r := <-results
		if r.err != nil {
			g.t.Error(r.err)
			continue
		}
		took = max(took, r.took)
		if limit := Documented + r.starved; r.took > limit && measured() {
			g.t.Errorf("%q was told after %v, later than the %v that are documented and the %v for which it and the test waited for a core; its last lines:\n%s",
				r.p.cmd.Args[1:], r.took.Round(time.Millisecond), Documented, r.starved.Round(time.Millisecond), r.p.tail())
		}
		g.checkCause(r.cause)
	}
	if g.t.Failed() {
		g.t.FailNow()
	}
	return took
}

func (p *Process) pid() int { return p.cmd.Process.Pid }

// measured reports whether the system tells how long threads wait for a core.
func measured() bool {
	_, err := os.Stat("/proc/self/schedstat")
	return err == nil
}

// starvation returns for how long a process's threads were ready to run and had no core, all together.
// The time is 0 where the system does not tell.
func starvation(pid int) (sum time.Duration) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, _ := os.ReadDir(dir)
	for _, thread := range threads {
		var ran, waited time.Duration
		text, _ := os.ReadFile(dir + "/" + thread.Name() + "/schedstat")
		fmt.Sscan(string(text), &ran, &waited) // a thread that has just ended has waited for nothing
		sum += waited
	}
	return sum
}

var word = regexp.MustCompile(`[a-z]{3}`)

func (g *group) checkCause(cause string) {
	g.t.Helper()
	if !word.MatchString(cause) {
		g.t.Errorf("a survivor was told no cause: %q", cause)
	}
}
