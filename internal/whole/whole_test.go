package whole

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var (
	seedsFlag  = flag.Int("seeds", 0, "how many runs to make; 0: as many as -time allows")
	timeFlag   = flag.Duration("time", 2*time.Second, "how long to make runs at most, but for the first few dozen")
	firstFlag  = flag.Uint64("first", 0, "the first seed")
	seedFlag   = flag.Int64("seed", -1, "make the run of this seed only")
	planFlag   = flag.String("plan", "", "make the run of this plan only, in the form in which failures print theirs")
	shrinkFlag = flag.Int("shrink", 300, "how many runs to spend on a simpler plan that fails too")
)

// attempt runs a plan in a bubble of its own.
func attempt(t *testing.T, p plan, trace, capture io.Writer) (w *world, err error) {
	t.Run("", func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, p.Seed)
		synctest.Test(t, func(t *testing.T) { w, err = simulate(p, trace, capture) })
	})
	return w, err
}

// leastRuns is how many runs TestWhole makes, with -short a third of them, however slow the machine is: a run that makes
// none shows nothing.
const leastRuns = 24

// TestWhole runs as many plans as there is time for, and leastRuns at least. See the package comment.
func TestWhole(t *testing.T) {
	if *seedFlag >= 0 {
		report(t, draw(uint64(*seedFlag)))
		return
	}
	if *planFlag != "" {
		var p plan
		if err := json.Unmarshal([]byte(*planFlag), &p); err != nil {
			t.Fatalf("-plan %s: %v", *planFlag, err)
		}
		report(t, p)
		return
	}
	limit, least := *timeFlag, leastRuns
	if testing.Short() {
		limit, least = limit/2, least/3
	}
	if *seedsFlag > 0 {
		least = min(least, *seedsFlag)
	}
	var sum totals
	begin := time.Now()
	for n := 0; (*seedsFlag == 0 || n < *seedsFlag) && (n < least || time.Since(begin) < limit); n++ {
		seed := *firstFlag + uint64(n)
		w, err := attempt(t, draw(seed), nil, nil)
		sum.add(&w.totals)
		if err != nil {
			t.Logf("seed %d, run %d, fails: %v", seed, n+1, err)
			report(t, draw(seed))
			break
		}
	}
	if !t.Failed() && (sum.Runs < uint64(least) || *seedsFlag == 0 && (sum.Sent == 0 || sum.Completions == 0 || sum.Conns == 0 || sum.faults() == 0)) {
		t.Errorf("%d runs, %+v: want %d at least, with packets, completions, connections and faults", sum.Runs, sum, least)
	}
	took := time.Since(begin)
	fmt.Printf("%d seeds from %d on, in %v: %d events, %.0f a second; %d faults; %+v\n", sum.Runs, *firstFlag, took.Round(time.Second),
		sum.events(), float64(sum.events())/took.Seconds(), sum.faults(), sum)
}

// changed makes the runs of some plans, from a seed on, which change makes ones of a kind.
func changed(t *testing.T, first uint64, change func(*plan)) (sum totals, runs uint64) {
	t.Helper()
	runs = 40
	if testing.Short() {
		runs = 10
	}
	for seed := range runs {
		p := draw(first + seed)
		change(&p)
		w, err := attempt(t, p, nil, nil)
		if err != nil {
			t.Fatalf("seed %d, plan %v: %v", p.Seed, p, err)
		}
		sum.add(&w.totals)
	}
	return sum, runs
}

// report makes the run of a plan. If it fails, report shrinks the plan and shows its run.
func report(t *testing.T, p plan) {
	seed := p.Seed
	w, err := attempt(t, p, nil, nil)
	if err == nil {
		t.Logf("seed %d passes, plan %v: %+v", seed, p, w.totals)
		return
	}
	first := err
	for left := *shrinkFlag; left > 0; {
		shrunk := false
		for _, q := range p.simpler() {
			if left--; left < 0 {
				break
			}
			if _, e := attempt(t, q, nil, nil); e != nil {
				p, err, shrunk = q, e, true
				break
			}
		}
		if !shrunk {
			break
		}
	}
	dir, e := os.MkdirTemp("", "adverb-whole-")
	if e != nil {
		t.Fatal(e)
	}
	var trace bytes.Buffer
	capture, e := os.Create(filepath.Join(dir, "packets.pcapng"))
	if e != nil {
		t.Fatal(e)
	}
	defer capture.Close()
	attempt(t, p, &trace, capture)
	if e := os.WriteFile(filepath.Join(dir, "trace.txt"), trace.Bytes(), 0o600); e != nil {
		t.Fatal(e)
	}
	lines := strings.Split(strings.TrimRight(trace.String(), "\n"), "\n")
	t.Errorf("seed %d of commit %s fails: %v\nreplay: go test ./internal/whole -run TestWhole -v -args -seed %d\nsimplest plan: %v\nit fails: %v\nlast of %d lines of its trace:\n%s\ntrace and capture: %s",
		seed, commit(), first, seed, p, err, len(lines), strings.Join(lines[max(0, len(lines)-60):], "\n"), dir)
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// TestWholeReplays: the same plan makes the same run, to the last packet.
func TestWholeReplays(t *testing.T) {
	for seed := range uint64(6) {
		a, errA := attempt(t, draw(seed), io.Discard, nil)
		b, errB := attempt(t, draw(seed), io.Discard, nil)
		if a.digest != b.digest || a.totals != b.totals || fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Errorf("seed %d: two runs differ: %x and %x, %+v and %+v, %v and %v", seed, a.digest, b.digest, a.totals, b.totals, errA, errB)
		}
	}
}
