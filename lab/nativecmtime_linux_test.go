package lab

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// TestNativeCmtime compares cmtime of rdma-core with ours, each as client and server in one guest, by the kernel's connection
// manager and its rdma_rxe. It prints the ratio of the medians: -v shows it.
func TestNativeCmtime(t *testing.T) {
	needCards(t)
	l := ownLab(t.Context(), t, Config{MTU: 1500})
	g := l.Guest(0)
	put(t.Context(), t, g, nativeTool(t.Context(), t, l.Host()), nativeBinary)
	times := map[string][]float64{}
	for range 5 {
		for _, program := range []string{"cmtime", nativeBinary} { // by turns: the machine is not as fast at all times
			times[program] = append(times[program], cmtimeTotal(within(t, patience), t, g, program))
		}
	}
	c, our := median(times["cmtime"]), median(times[nativeBinary])
	t.Logf("100 connections: rdma-core %.0f ms %.0f, adverb %.0f ms %.0f; connections per second: %.2f of rdma-core's", c, times["cmtime"], our, times[nativeBinary], c/our)
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

var cmtimeStep = regexp.MustCompile(`(?m)^(.+?) *: +([0-9.]+) +[0-9.]+ +[0-9.]+ +[0-9.]+$`)

// cmtimeTotal runs a client and a server in a guest, and returns the milliseconds of all steps.
func cmtimeTotal(ctx context.Context, t *testing.T, g *Guest, program string) (total float64) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	argv := []string{program}
	if program == nativeBinary {
		argv = append(argv, "cmtime")
	}
	addr := g.Addr(false).String()
	srv := startCM(ctx, t, g, at, append(argv, "-p", at.port, "-b", addr)...)
	left := finish(t, start(ctx, t, g, append(argv, "-c", "100", "-p", at.port, "-s", addr)...))[0]
	interrupt(t, srv)
	steps := cmtimeStep.FindAllStringSubmatch(left.Stdout, -1)
	if len(steps) != 7 {
		t.Fatalf("%s prints %d steps of 7:\n%s", program, len(steps), left.Stdout)
	}
	line := ""
	for _, m := range steps {
		ms, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		line += fmt.Sprintf("  %s %.0f", m[1], ms)
		total += ms
	}
	t.Logf("%s: ms:%s", program, line)
	return total
}
