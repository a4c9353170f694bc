package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The tests in this file and in nativetools_linux_test.go drive a device of the kernel's in a guest through rdma-core's libibverbs,
// as a card is driven: the tool with cards runs in the guest, with the libraries of the guest's packages.

const nativeBinary = "/run/adverb-native"

// needCards skips a test of cards unless it is asked for: together they take as long as all others.
func needCards(t *testing.T) {
	t.Helper()
	needLab(t)
	if !*cardsFlag {
		t.Skip("make lab LABFLAGS='-args -cards' runs it")
	}
}

// nativePatience is for the conformance suite, some cases of which run out of time on the kernel's devices.
const nativePatience = 20 * time.Minute

// otherRelease is the Debian release of some guests, beside that of the others.
const otherRelease = "trixie"

// nativeTool builds the tool that has cards.
func nativeTool(ctx context.Context, t *testing.T, h *Host) string {
	t.Helper()
	out := t.TempDir() + "/adverb-native"
	finish(t, start(ctx, t, h, "env", "CGO_ENABLED=0", "go", "build", "-tags", "adverb_native", "-o", out, modulePath+"cmd/adverb"))
	return out
}

// TestNativeConformance runs the conformance suite on the kernel's devices, of the guests' Linux and of a newer one. A case that
// fails is known, and one that passes is not known to fail.
func TestNativeConformance(t *testing.T) {
	needCards(t)
	releases := []string{""}
	if Release == "" {
		releases = append(releases, otherRelease)
	}
	for _, release := range releases {
		for _, device := range []string{deviceRxe, deviceSiw} {
			cfg := Config{MTU: 1500, Device: device, Release: release}
			t.Run(strings.TrimSpace(device+" "+release), func(t *testing.T) {
				t.Parallel() // the suite waits most of the time
				conform(t, cfg)
			})
		}
	}
}

// conform runs the conformance suite on a guest's device.
func conform(t *testing.T, cfg Config) {
	ctx := within(t, nativePatience)
	l := ownLab(ctx, t, cfg)
	g := l.Guest(0)
	recordTest(t, nativeFamily, resultRow{program: "verify", server: nativeServes(l)}, "the conformance suite, with a table of what the driver does otherwise")
	put(ctx, t, g, nativeTool(ctx, t, l.Host()), nativeBinary)
	kernel, err := g.Run(ctx, "uname", "-r")
	if err != nil {
		t.Fatal(err)
	}
	outcomes := verify(ctx, t, g, "--skip", hurtOf[cfg.Device].cases)
	table, lacks := knownOf[cfg.Device], lacksOf[cfg.Device]
	count, seen, lacked := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, c := range outcomes {
		count[c.Outcome]++
		seen[c.Case] = true
		if c.Outcome == "skip" {
			needed := capability(c.Why)
			if l, ok := lacks[needed]; ok && l.of(kernel) {
				lacked[needed] = true
				continue
			}
		}
		why := surprise(table, kernel, c.Case, c.Outcome)
		for i := 0; i < stallOf[cfg.Device].times && why != "" && strings.Contains(c.Why, "deadline exceeded"); i++ {
			t.Logf("%s has stalled, and runs again", c.Case)
			c = verify(ctx, t, g, "--run", "^"+regexp.QuoteMeta(c.Case)+"$")[0]
			why = surprise(table, kernel, c.Case, c.Outcome)
		}
		if why != "" {
			t.Errorf("%s: %s\n%s", c.Case, why, c.Why)
		}
	}
	for name := range table {
		if !seen[name] {
			t.Errorf("%s is known, and there is no such case", name)
		}
	}
	for needed, l := range lacks {
		if l.of(kernel) && !lacked[needed] {
			t.Errorf("no case was skipped for lack of %s (%s)", needed, l.why)
		}
	}
	t.Logf("Linux %s: %d pass, %d fail, %d are skipped", strings.TrimSpace(kernel), count["pass"], count["fail"], count["skip"])
}

// outcome is how a case has ended.
type outcome struct{ Case, Outcome, Why string }

// verify runs cases of the conformance suite on the guest's device.
func verify(ctx context.Context, t *testing.T, g *Guest, flags ...string) []outcome {
	t.Helper()
	p := start(ctx, t, g, append([]string{nativeBinary, "verify", g.Device, "--json"}, flags...)...)
	res, err := p.Wait()
	var out struct{ Cases []outcome }
	if err == nil {
		err = json.Unmarshal([]byte(res.Stdout), &out)
	}
	if err == nil && len(out.Cases) == 0 {
		err = errors.New("no case has run")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Report())
	}
	return out.Cases
}

// capability returns the capability that a case was skipped for, by what the suite says of it.
func capability(why string) string {
	_, rest, _ := strings.Cut(why, "the device has no ")
	name, _, _ := strings.Cut(rest, ":")
	return name
}

// surprise says why the outcome of a case is not the known one, or returns "".
func surprise(table map[string]known, kernel, name, outcome string) string {
	switch k, ok := table[name]; {
	case (!ok || !k.of(kernel)) && outcome != "pass":
		return outcome
	case ok && k.of(kernel) && outcome != k.outcome && (outcome == "skip" || k.outcome != "some"):
		return fmt.Sprintf("%s, and is known to %s: %s", outcome, k.outcome, k.cause)
	}
	return ""
}

func TestSurprise(t *testing.T) {
	table := map[string]known{"a": {"fail", "it does", ""}, "b": {"some", "it may", "6.1"}}
	for _, c := range []struct {
		kernel, name, outcome string
		surprising            bool
	}{
		{"6.1.0-1", "a", "fail", false}, {"6.1.0-1", "a", "pass", true}, {"6.1.0-1", "a", "skip", true},
		{"6.1.0-1", "b", "fail", false}, {"6.1.0-1", "b", "pass", false}, {"6.1.0-1", "b", "skip", true},
		{"6.12.1", "b", "fail", true}, {"6.12.1", "b", "pass", false},
		{"6.1.0-1", "d", "pass", false}, {"6.1.0-1", "d", "fail", true}, {"6.1.0-1", "d", "skip", true},
	} {
		if got := surprise(table, c.kernel, c.name, c.outcome); (got != "") != c.surprising {
			t.Errorf("Linux %s, case %s: %s: got %q, want a surprise: %v", c.kernel, c.name, c.outcome, got, c.surprising)
		}
	}
}
