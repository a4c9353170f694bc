package bench

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// A peer does the workloads, as this module or as something that it is compared with. A new one is an
// entry in peers.
type peer struct {
	name  string
	title string

	// missing says why the peer cannot be asked on this machine, and what to do about it.
	missing func() string

	// prepare returns how the peer does a workload, or nil if it has nothing like it.
	prepare func(w *workload) *method

	// memory says that the peer shares memory, and uses no network.
	memory bool
}

// has reports whether the peer uses a network.
func (p *peer) has(n *network) bool { return p.name == ours || p.memory == n.memory }

// method is how a peer does a workload.
type method struct {
	note    string // in which way it is not quite the workload
	missing string // why this peer cannot do it here
	measure func(ctx context.Context, c *cell) (benchdata.Cell, error)
}

// cell is what is to be measured.
type cell struct {
	*settings
	site *site
	w    *workload
	peer *peer

	control string // of congestion; empty: the default
	env     string // a variable of both ends; empty: none

	// perSecond is how many operations the peer made of this workload in the round before, or 0.
	// Programs that want a number of operations, and not a time, get one by it.
	perSecond float64
	round     int
}

// ours is the peer that the others are compared with.
const ours = "adverb"

var peers = []peer{
	{ours, "adverb", nil, func(*workload) *method { return &method{measure: measurePair(ours)} }, false},
	{"probe", "probe (limit)", probeMissing, prepareProbe, false},
	{"tcp", "Go TCP", nil, prepareTCP, false},
	{"iwarp", "adverb iWARP", nil, prepareIWARP("iwarp"), false},
	{"iwarp_crc", "adverb iWARP, CRC", nil, prepareIWARP("iwarp_crc"), false},
	{"ucx", "UCX tcp", missingProgram("ucx_perftest", "ucx-utils"), prepareUCX("tcp"), false},
	{"ofi_tcp", "libfabric tcp", missingProgram("fi_pingpong", "libfabric-bin"), prepareLibfabric("tcp"), false},
	{"ofi_udp", "libfabric udp;ofi_rxd", missingProgram("fi_pingpong", "libfabric-bin"), prepareLibfabric("udp;ofi_rxd"), false},
	{"memcpy", "memcpy (limit)", nil, prepareMemcpy, true},
	{"ucx_posix", "UCX posix", missingProgram("ucx_perftest", "ucx-utils"), prepareUCX("posix"), true},
	{"ucx_cma", "UCX posix,cma", missingProgram("ucx_perftest", "ucx-utils"), prepareUCX("posix,cma"), true},
	{"ofi_shm", "libfabric shm", missingProgram("fi_pingpong", "libfabric-bin"), prepareLibfabric("shm"), true},
}

func probeMissing() string {
	if runtime.GOOS != "linux" {
		return "trains of datagrams (UDP_SEGMENT, UDP_GRO) are Linux's"
	}
	return ""
}

func prepareProbe(w *workload) *method {
	if w.kind.needsRDMA() {
		return nil
	}
	m := &method{measure: measurePair("probe")}
	switch w.kind {
	case kindRead, kindSend:
		m.note = "as for WRITE: packets one way"
	}
	return m
}

// prepareIWARP returns how our own iWARP devices do a workload: over TCP.
func prepareIWARP(program string) func(*workload) *method {
	return func(w *workload) *method {
		if w.kind == kindSend {
			return nil // iWARP has nothing that holds a sender back, so programs count receives
		}
		if w.kind == kindWatched {
			return nil // the server is not told of the client's memory
		}
		return &method{measure: measurePair(program)}
	}
}

func prepareTCP(w *workload) *method {
	if w.kind.needsRDMA() {
		return nil
	}
	m := &method{measure: measurePair("tcp")}
	switch w.kind {
	case kindPolled:
		m.missing = canPollTCP
	case kindRead, kindSend, kindWrite:
		m.note = fmt.Sprintf("one Write of %s each", sizeText(w.size))
	}
	return m
}

func sizeText(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// missingProgram says how to get a program that is not there.
func missingProgram(program, debianPackage string) func() string {
	return func() string {
		if _, err := exec.LookPath(program); err == nil {
			return ""
		}
		return fmt.Sprintf("%s is not installed (on Debian: apt install %s)", program, debianPackage)
	}
}
