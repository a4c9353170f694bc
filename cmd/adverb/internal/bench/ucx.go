package bench

import (
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ucxTests are the tests of ucx_perftest that are like our workloads.
var ucxTests = map[kind]string{
	kindWrite: "ucp_put_bw", kindRead: "ucp_get", kindSend: "tag_bw", kindList: "tag_bw", kindPolled: "tag_lat", kindBlocked: "tag_lat",
	kindAtomic: "ucp_fadd", kindWatched: "ucp_put_lat",
}

// prepareUCX prepares the workloads for some of UCX's transports.
func prepareUCX(tls string) func(w *workload) *method {
	return func(w *workload) *method {
		return &method{note: "ucx_perftest -t " + ucxTests[w.kind], measure: measureOutside(func(c *cell, port, n int) outside {
			return ucxCommand(c, tls, port, n)
		})}
	}
}

func ucxCommand(c *cell, tls string, port, n int) outside {
	env := []string{"UCX_TLS=" + tls, "UCX_WARN_UNUSED_ENV_VARS=n"}
	if !c.site.network.memory {
		env = append(env, "UCX_NET_DEVICES="+c.site.netdev)
	}
	server := []string{"ucx_perftest", "-p", strconv.Itoa(port)}
	client := append(server, c.site.ends[atServer].addr, "-t", ucxTests[c.w.kind], "-s", strconv.Itoa(c.w.size),
		"-n", strconv.Itoa(n), "-w", strconv.Itoa(max(1, n/4)), "-f", "-v")
	switch {
	case c.w.kind == kindBlocked:
		client = append(client, "-E", "sleep")
	case c.w.outstanding > 1:
		client = append(client, "-O", strconv.Itoa(c.w.outstanding))
	}
	return outside{server, client, env, 1.25, func(output string) (float64, error) {
		rate, err := parseUCX(output)
		if c.w.kind.isLatency() {
			rate /= 2 // its messages are one way
		}
		return rate, err
	}}
}

var errUCX = errors.New("its output has no line of overall_lat and overall_mr")

// parseUCX reads the output of ucx_perftest -v: a line of names and a line of numbers. It returns messages per
// second, one way.
func parseUCX(output string) (float64, error) {
	var names []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "iterations,") {
			names, _ = csv.NewReader(strings.NewReader(line)).Read()
			continue
		}
		if names == nil {
			continue
		}
		fields, err := csv.NewReader(strings.NewReader(line)).Read()
		if err != nil || len(fields) != len(names) {
			continue
		}
		byName := map[string]float64{}
		for i, name := range names {
			v, err := strconv.ParseFloat(strings.TrimSpace(fields[i]), 64)
			if err != nil {
				return 0, fmt.Errorf("%s is %q, which is no number", name, fields[i])
			}
			byName[name] = v
		}
		// The rate is a whole number, and the time has three decimals: take the finer one.
		const fine = 30_000 // messages per second
		if rate := byName["overall_mr"]; rate > fine {
			return rate, nil
		}
		if µs := byName["overall_lat"]; µs > 0 {
			return 1e6 / µs, nil
		}
	}
	return 0, errUCX
}
