package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Debian has libfabric's fi_pingpong. The programs that have many operations under way, such as
// fi_rma_bw, are in fabtests. They are taken where they are installed.

// fabtests are the programs of fabtests that are like our workloads, with their arguments.
var fabtests = map[kind][]string{
	kindWrite: {"fi_rma_bw", "-o", "write"}, kindRead: {"fi_rma_bw", "-o", "read"}, kindSend: {"fi_rdm_bw"},
}

// prepareLibfabric prepares the workloads for a provider of libfabric.
func prepareLibfabric(provider string) func(w *workload) *method {
	return func(w *workload) *method {
		if program := fabtests[w.kind]; program != nil {
			if _, err := exec.LookPath(program[0]); err == nil {
				return &method{note: strings.Join(program, " "), measure: measureOutside(func(c *cell, port, n int) outside {
					return fabtest(c, provider, program, port, n)
				})}
			}
			// One message at a time says nothing about a path that many small messages fill.
			if w.size < 64<<10 || w.kind == kindRead {
				return nil
			}
		}
		if w.kind == kindBlocked || w.kind.needsRDMA() { // it has no way to wait but to poll
			return nil
		}
		m := &method{measure: measureOutside(func(c *cell, port, n int) outside { return fiPingpong(c, provider, port, n) })}
		if w.kind != kindPolled {
			m.note = "fi_pingpong, one at a time (fabtests' fi_rma_bw is not installed)"
		} else {
			m.note = "fi_pingpong"
		}
		return m
	}
}

func fiPingpong(c *cell, provider string, port, n int) outside {
	if !c.w.kind.isLatency() {
		n = max(1, n/2) // its iterations are there and back
	}
	common := []string{"fi_pingpong", "-p", provider, "-e", "rdm", "-S", strconv.Itoa(c.w.size), "-I", strconv.Itoa(n)}
	p := strconv.Itoa(port)
	return outside{
		server: append(common[:len(common):len(common)], "-B", p),
		client: append(common[:len(common):len(common)], "-P", p, c.site.ends[atServer].addr),
		perOp:  1,
		rate: func(output string) (float64, error) {
			rate, err := parseLibfabric(output)
			if c.w.kind.isLatency() {
				rate /= 2 // its transfers are one way
			}
			return rate, err
		},
	}
}

func fabtest(c *cell, provider string, program []string, port, n int) outside {
	p := strconv.Itoa(port)
	common := append(program[:len(program):len(program)], "-p", provider, "-S", strconv.Itoa(c.w.size), "-I", strconv.Itoa(n),
		"-W", strconv.Itoa(c.w.outstanding), "-w", strconv.Itoa(max(1, n/4)))
	return outside{
		server: append(common[:len(common):len(common)], "-B", p, "-s", c.site.ends[atServer].addr),
		client: append(common[:len(common):len(common)], "-P", p, "-s", c.site.ends[atClient].addr, c.site.ends[atServer].addr),
		perOp:  1.25,
		rate:   parseLibfabric,
	}
}

var errLibfabric = errors.New("its output has no column usec/xfer")

// parseLibfabric reads the table that libfabric's programs print: a line of names and a line of numbers.
// It returns transfers per second, one way.
func parseLibfabric(output string) (float64, error) {
	column := -1
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if column >= 0 && len(fields) > column {
			µs, err := strconv.ParseFloat(fields[column], 64)
			if err != nil || µs <= 0 {
				return 0, fmt.Errorf("usec/xfer is %q", fields[column])
			}
			return 1e6 / µs, nil
		}
		for i, name := range fields {
			if name == "usec/xfer" {
				column = i
			}
		}
	}
	return 0, errLibfabric
}
