package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/benchdata"
)

var tool = tooltest.New(Command)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "ucx_perftest" {
		os.Exit(mimic(os.Args[1:]))
	}
	if os.Getenv(envChild) != "" {
		t := cli.Tool{Name: "adverb", Commands: []*cli.Command{Command}}
		os.Exit(t.Run(context.Background(), []string{"adverb", commandName}, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// bench runs a benchmark, and returns its JSON and the table of it.
func bench(t *testing.T, args ...string) (*benchdata.Report, string) {
	t.Helper()
	code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "bench", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("%q: got status %d, stderr %s, want status 0", args, code, stderr)
	}
	var r benchdata.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	var table bytes.Buffer
	printReport(&table, &r)
	return &r, table.String()
}

// cpuTick is more than the time, in seconds, after which Linux counts the CPU time of a thread on another core.
const cpuTick = 0.05

// checkCells fails the test unless each series has a good cell for each round.
func checkCells(t *testing.T, r *benchdata.Report, rounds int) {
	t.Helper()
	for _, n := range r.Networks {
		if n.Skipped != "" {
			t.Errorf("%s: skipped: %s, want it measured", n.Name, n.Skipped)
		}
		if len(n.Distance) != rounds {
			t.Errorf("%s: got %d distances of the cores, want one for each of %d rounds", n.Name, len(n.Distance), rounds)
		}
		for _, row := range n.Rows {
			for _, s := range row.Series {
				if len(s.Cells) == 0 && row.Find(s.Peer) != nil && (s.Missing != "" || slices.Contains(nothingLike[s.Peer], row.Workload.Name)) {
					continue
				}
				if len(s.Cells) != rounds {
					t.Errorf("%s, %s, %s: got %d cells, want %d", n.Name, row.Workload.Name, s.Peer, len(s.Cells), rounds)
				}
				for _, c := range s.Cells {
					if c.Failed != "" || !(c.Value > 0) || c.Ops < 1 || !(c.Seconds > 0) || c.Counts == nil || c.Counts.Allocs < 0 {
						t.Errorf("%s, %s, %s: got %+v, counts %+v, want a measurement", n.Name, row.Workload.Name, s.Peer, c, c.Counts)
					}
					if s.Peer == ours && n.Name != "memory" && (c.Counts == nil || c.Counts.Packets == 0) {
						t.Errorf("%s, %s: got the counts %+v, want the packets that were sent", n.Name, row.Workload.Name, c.Counts)
					}
					if c.CPU == nil || c.CPU.Client < 0 || c.CPU.Server < 0 || c.CPU.Client+c.CPU.Server > float64(runtime.NumCPU())*(c.Seconds+cpuTick) {
						t.Errorf("%s, %s, %s: got the CPU time %+v in %g s, want some of it, and no more than there is", n.Name, row.Workload.Name, s.Peer, c.CPU, c.Seconds)
					}
				}
			}
		}
	}
}

// TestBench measures each workload with each of our own peers over each network, by two processes. A row that fails, or
// is empty without a word, is none.
func TestBench(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("two processes on two loopback addresses: needs Linux, or an alias")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range networks {
		n := &networks[i]
		var list, does []string
		for _, p := range peers {
			if p.has(n) && !strings.HasPrefix(p.name, "ucx") && !strings.HasPrefix(p.name, "ofi") {
				list = append(list, p.name)
			}
		}
		for _, w := range workloads {
			if !testing.Short() || slices.Contains([]string{"write_64", "write_1m", "send_64_list", "lat_polled_4k", "lat_blocked"}, w.name) {
				does = append(does, w.name)
			}
		}
		t.Run(n.name, func(t *testing.T) {
			r, table := bench(t, "-r", "1", "-t", "1ms", "-n", n.name, "-p", strings.Join(list, ","), "-w", strings.Join(does, ","), "--plain", exe)
			if why := r.Networks[0].Skipped; why != "" {
				if !strings.Contains(why, "root") && !strings.Contains(why, "veth") {
					t.Errorf("skipped: %s, want the missing part", why)
				}
				t.Skip(why)
			}
			checkEach(t, &r.Networks[0], list)
			checkCells(t, r, 1)
			for _, name := range does {
				w := workloads[slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })]
				if !strings.Contains(table, w.title) {
					t.Errorf("got no %q in the table", w.title)
				}
			}
			if t.Failed() {
				t.Log(table)
			}
		})
	}
}

// nothingLike are the workloads that a peer has nothing like, beside those of which its row says so.
var nothingLike = map[string][]string{
	"adverb_sleeps": {"write_64", "write_4k", "write_64k", "write_1m", "read_1m", "send_64", "send_64_list", "fetch_add", "lat_polled", "lat_polled_4k", "lat_write"},
	"probe":         {"fetch_add", "lat_write"},
	"probe_single":  {"write_64k", "write_1m", "read_1m", "send_64_list", "fetch_add", "lat_polled", "lat_polled_4k", "lat_blocked", "lat_write"},
	"tcp":           {"send_64_list", "fetch_add", "lat_write"},
	"tcp_writev":    {"write_64k", "write_1m", "read_1m", "fetch_add", "lat_polled", "lat_polled_4k", "lat_blocked", "lat_write"},
	"memcpy":        {"fetch_add", "lat_polled", "lat_polled_4k", "lat_blocked", "lat_write"},
	"memcpy_two":    {"fetch_add", "lat_blocked"},
}

// checkEach checks that each peer has measured each workload, or has a reason in the table or in nothingLike.
func checkEach(t *testing.T, n *benchdata.Network, list []string) {
	t.Helper()
	for _, row := range n.Rows {
		for _, name := range list {
			s := row.Find(name)
			if s == nil {
				t.Errorf("%s: %s is not in the report", row.Workload.Name, name)
				continue
			}
			leftOut := strings.HasPrefix(s.Missing, "left out: ") || strings.HasPrefix(name, "memcpy") && strings.Contains(s.Missing, "one core")
			want := 1
			if leftOut || slices.Contains(nothingLike[name], row.Workload.Name) {
				want = 0
			}
			if len(s.Cells) != want || s.Missing != "" && !leftOut {
				t.Errorf("%s, %s: got %d cells, missing %q; want %d", row.Workload.Name, name, len(s.Cells), s.Missing, want)
			}
		}
	}
}

// Several rounds, pinned to cores, with profiles.
func TestRounds(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pins processes to cores: needs Linux")
	}
	cpus := allowedCPUs()
	at := fmt.Sprintf("%d,%d", cpus[0], cpus[len(cpus)-1])
	dir := t.TempDir()
	r, table := bench(t, "-r", "3", "-t", "1ms", "-n", "loopback", "-p", "adverb,tcp", "-w", "lat_blocked", "--cpus", at, "--cpuprofile", dir)
	checkCells(t, r, 3)
	if r.CPUs != at || !strings.Contains(table, "pinned to cores "+at) {
		t.Errorf("got cores %q in\n%s\nwant %q", r.CPUs, table, at)
	}
	profiles, err := filepath.Glob(filepath.Join(dir, "loopback-lat_blocked-*-*-*.pprof"))
	if err != nil || len(profiles) != 3*2*2 {
		t.Errorf("got profiles %q, %v, want one for each round, peer and end", profiles, err)
	}
}

// As root there are networks between two namespaces, of which nothing is left.
func TestVeth(t *testing.T) {
	for _, name := range []string{"veth9000", "veth1500"} {
		before := namespaces(t)
		r, _ := bench(t, "-r", "1", "-t", "1ms", "-n", name, "-p", "adverb,probe,tcp", "-w", "write_64k")
		if why := r.Networks[0].Skipped; why != "" {
			if !strings.Contains(why, "root") && !strings.Contains(why, "Linux") && !strings.Contains(why, "veth") {
				t.Errorf("skipped: %s, want the missing part", why)
			}
			t.Skip(why)
		}
		checkCells(t, r, 1)
		for deadline := time.Now().Add(tooltest.Patience); ; runtime.Gosched() { // threads end a little later
			now := namespaces(t)
			maps.DeleteFunc(now, func(ns string, _ bool) bool { return before[ns] })
			if len(now) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the namespaces %v are left over, want none", name, now)
			}
		}
	}
}

// namespaces are the network namespaces that threads of this process are in.
func namespaces(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	names, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, name := range names {
		if ns, err := os.Readlink(name); err == nil { // else the thread has ended
			all[ns] = true
		}
	}
	return all
}

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"-r", "0"}, "--rounds 0: rounds are 1 to 1000"},
		{[]string{"--rounds", "x"}, "--rounds x: rounds are"},
		{[]string{"-t", "5"}, "--time 5: it is a duration such as 300ms"},
		{[]string{"-t", "1ns"}, "from 1ms to 1m0s"},
		{[]string{"-p", "adverb,nope"}, `--peers: there is no "nope"; there are adverb, adverb_plain, adverb_sleeps, probe,`},
		{[]string{"-n", "wan"}, `--networks: there is no "wan"; there are loopback, memory, veth9000, veth1500`},
		{[]string{"--cpus", "0"}, `cores "0": give two numbers`},
		{[]string{"--cpus", "0,-1"}, `cores "0,-1": give two numbers`},
		{[]string{"-w", ""}, "read --workloads: the text is empty"},
		{[]string{"fast"}, `unknown operand "fast"`},
	} {
		code, stdout, stderr := tool.Run(t.Context(), append([]string{"adverb", "bench"}, tt.args...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tt.stderr) || !strings.Contains(stdout, "Usage: adverb bench") {
			t.Errorf("%q: got status %d, stderr %q, stdout %q, want 2, %q and the usage", tt.args, code, stderr, stdout, tt.stderr)
		}
	}
	picked, err := pick("peers", "tcp,adverb", peers)
	if err != nil || names(picked) != "adverb, tcp" {
		t.Errorf("got %s, %v, want the order of the table", names(picked), err)
	}
}

// An end that fails says so in the cell, and the rest goes on.
func TestFailures(t *testing.T) {
	c := cell{settings: &settings{time: time.Millisecond}, w: &workloads[0], peer: &peers[0]}
	n := network{name: "broken", pathMTU: 4096}
	c.site = &site{network: &n, netdev: "nothing"}
	for end := range c.site.ends {
		if err := c.site.at(end, "127.0.0.1", nil, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	defer c.site.close()
	for _, tt := range []struct{ program, want string }{
		{"adverb", "soft_nothing@127.0.0.1"},
		{"nosuch", "the order names no workload or program"},
	} {
		if got, err := measurePair(tt.program)(t.Context(), &c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %+v, %v, want an error with %q", tt.program, got, err, tt.want)
		}
	}
}

// The meter leaves out the warm-up, and counts for its time.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(&order{Warmup: 10 * time.Millisecond, Time: 100 * time.Millisecond}, 1<<20)
		n := int64(0)
		for m.on(n) {
			time.Sleep(time.Millisecond)
			n++
		}
		if m.skipped != 10 || m.ops != 100 || m.elapsed != 100*time.Millisecond || n != 110 {
			t.Errorf("got %d operations in %v behind %d, %d in all, want 100 in 100ms behind 10", m.ops, m.elapsed, m.skipped, n)
		}
	})
	synctest.Test(t, func(t *testing.T) { // small ones: not a look at the clock for each
		m := newMeter(&order{Warmup: time.Millisecond, Time: time.Millisecond}, 64)
		looks := int64(0)
		for n := int64(0); m.on(n); n++ {
			if m.next == n+m.step {
				looks++
				time.Sleep(time.Millisecond)
			}
		}
		if m.step != 64 || m.ops != 64*(looks-1) {
			t.Errorf("got %d operations by %d looks with a step of %d, want 64 operations for each look", m.ops, looks, m.step)
		}
	})
}

// Nothing counts that was done during the warm-up.
func TestMeterExpires(t *testing.T) {
	m := newMeter(&order{Warmup: time.Hour, Time: time.Hour}, 64)
	m.on(0)
	m.expire(5)
	if m.ops != 0 || m.elapsed != 0 {
		t.Errorf("got %d operations in %v, want none: the warm-up was not over", m.ops, m.elapsed)
	}
}

// No work, no result: a cell that ends before anything was done is not measured by zero.
func TestMeterWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(&order{Warmup: time.Millisecond, Time: time.Millisecond}, 1<<20)
		for i := range int64(10) {
			time.Sleep(time.Millisecond)
			m.next = 0
			if !m.on(0) {
				t.Fatalf("after %d ms without work: got the end, want it to wait for work", i)
			}
		}
	})
}

func TestDistance(t *testing.T) {
	d := coreDistance(nil)
	if runtime.GOMAXPROCS(0) > 1 && (allowedCPUs() == nil || len(allowedCPUs()) > 1) && !(d > 0) {
		t.Errorf("got %v ns between two cores, want more than nothing", d)
	}
	if got := distances([]float64{60.4, 250}); got != "60, 250 ns" {
		t.Errorf("got %q, want the rounds' distances", got)
	}
	if got := distances([]float64{0}); !strings.Contains(got, "one core") {
		t.Errorf("got %q, want that there is one core", got)
	}
}

// The table of a report that holds a bit of everything.
func TestTable(t *testing.T) {
	counts, cpu := &benchdata.Counts{Allocs: 50, Packets: 1100, Repeats: 3}, &benchdata.CPU{Client: .3, Server: .15}
	r := benchdata.Report{Host: benchdata.Host{CPU: "Toy", CPUs: 2, OS: "linux", Kernel: "6.1", Go: "go1.26"}, Rounds: 2, Seconds: 0.3,
		Networks: []benchdata.Network{
			{Name: "loopback", Title: "UDP loopback", MTU: 65536, Distance: []float64{60, 250}, Rows: []benchdata.Row{
				{Workload: benchdata.Workload{Title: "WRITE 64 B", Unit: benchdata.PerSecond}, Series: []benchdata.Series{
					{Peer: ours, Title: "adverb", Cells: []benchdata.Cell{{Value: 2e6, Ops: 1000, Seconds: .3, Counts: counts, CPU: cpu}, {Value: 1e6, Ops: 1000, Seconds: .3, Counts: counts, CPU: cpu}}},
					{Peer: "tcp", Title: "Go TCP", Note: "one Write each", Cells: []benchdata.Cell{{Value: 1e6}, {Failed: "reset\nby peer"}}},
					{Peer: "ucx", Title: "UCX tcp", Missing: "not installed"},
					{Peer: "ofi", Title: "libfabric"},
				}}}},
			{Name: "veth9000", Title: "veth pair", Skipped: "needs root"},
		}}
	var got bytes.Buffer
	printReport(&got, &r)
	want := `Toy, 2 CPUs, linux 6.1, go1.26; adverb of unknown revision, built without a profile
2 rounds, 0.3 s for each measurement; ratios are taken within the rounds; of latencies less is better

loopback: UDP loopback, MTU 65536
from core to core, round by round: 60, 250 ns

WORKLOAD    PEER     MEDIAN    MIN–MAX    ADVERB ÷ PEER     NO PROFILE ÷ PEER  CORES        PACKETS/OP  REPEATS  ALLOCS/OP  NOTE
WRITE 64 B  adverb   1.50 M/s  1.00–2.00                                       1.00 + 0.50  1.10        6        0.05       
            Go TCP   1.00 M/s  1.00–1.00  2.00 (2.00–2.00)                                                                  failed in 1 of 2 rounds: reset; by peer; one Write each
            UCX tcp  –                                                                                                      not installed

veth9000: veth pair
not measured: needs root
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

// TestCPU: an end that polls takes the time of a core, and one that sleeps does not. The time of the other end is read
// from its process.
func TestCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("CPU clocks of other processes are Linux's")
	}
	own := [2]time.Duration{ownCPU.read(), cpuClockOf(os.Getpid()).read()}
	for spent := own; spent[0]-own[0] < time.Millisecond || spent[1]-own[1] < time.Millisecond; { // goes on for ever if one stands still
		spent = [2]time.Duration{ownCPU.read(), cpuClockOf(os.Getpid()).read()}
	}
	if own[0] == 0 || own[1] == 0 || cpuClockOf(0).read() != 0 {
		t.Errorf("got %v of this process and %v of none, want some and none", own, cpuClockOf(0).read())
	}
	for _, tt := range []struct {
		r        result
		isServer bool
		want     *benchdata.CPU
	}{
		{result{OwnCPU: time.Second, PeerCPU: 2 * time.Second, KnowsCPU: true}, false, &benchdata.CPU{Client: 1, Server: 2}},
		{result{OwnCPU: time.Second, PeerCPU: 2 * time.Second, KnowsCPU: true}, true, &benchdata.CPU{Client: 2, Server: 1}},
		{result{OwnCPU: time.Second}, false, nil},
	} {
		if got := cpuOf(&tt.r, tt.isServer); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v, of the server %v: got %+v, want %+v", tt.r, tt.isServer, got, tt.want)
		}
	}
	all := ends{client: 11 * time.Second, server: 6 * time.Second}
	if got := all.without(ends{time.Second, time.Second}, 0.8); !reflect.DeepEqual(got, &benchdata.CPU{Client: 8, Server: 4}) {
		t.Errorf("of a program with a start of 1 s: got %+v, want 8 and 4", got)
	}
	if got := all.without(all, 1); got != nil {
		t.Errorf("of a program that took nothing more: got %+v, want that it is not known", got)
	}
}

// TestMemcpyFootprint: copies walk as much memory as our regions have, whatever the number of threads, and all of it.
func TestMemcpyFootprint(t *testing.T) {
	for i := range workloads {
		w := &workloads[i]
		if w.kind.isLatency() || w.kind == kindAtomic {
			continue
		}
		for threads := 1; threads <= 2; threads++ {
			bytes, copied := 0, int64(0)
			ks := newCopiers(w, threads)
			for j := range ks {
				k := &ks[j]
				k.round()
				bytes, copied = bytes+len(k.from), copied+k.copied.Load()
				if !slices.Equal(k.from, k.to) || k.step > w.size || k.step < w.size && w.region() > w.size {
					t.Errorf("%s, %d threads: by copies of %d bytes not all of it is copied", w.name, threads, k.step)
				}
			}
			if bytes != w.region() || copied != int64(w.region()) {
				t.Errorf("%s, %d threads: got %d bytes from %d, want the region's %d", w.name, threads, copied, bytes, w.region())
			}
		}
	}
}

// TestIWARPSends: a stream of SENDs on iWARP would outrun the receives, which ends the connection sooner or later. So
// the rows say why they are empty.
func TestIWARPSends(t *testing.T) {
	for i := range workloads {
		w := &workloads[i]
		m := prepareIWARP("iwarp")(w)
		if left := w.kind == kindSend || w.kind == kindList || w.kind == kindWatched; strings.HasPrefix(m.missing, "left out: ") != left || (m.measure == nil) != left {
			t.Errorf("%s: got %+v, want it left out: %v", w.name, m, left)
		}
	}
}
