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

	// missing says why the peer cannot be measured on this machine, and the remedy.
	missing func() string

	// prepare returns how the peer does a workload, or nil if it has nothing like it.
	prepare func(w *workload) *method

	on places

	bound      bool   // the peer does the least that the others must do
	env        string // a variable of both ends; empty: none
	otherBuild bool   // both ends are the program that --plain names
}

// places says where a peer is asked.
type places int

const (
	overNetworks places = iota
	overMemory          // it shares memory, and uses no network
	overAll
)

// has reports whether the peer is asked over a network.
func (p *peer) has(n *network) bool { return p.on == overAll || (p.on == overMemory) == n.memory }

// method is how a peer does a workload.
type method struct {
	note    string // in which way it is not quite the workload
	missing string // why this peer cannot do it here
	measure func(ctx context.Context, c *cell) (benchdata.Cell, error)
}

// cell is one measurement.
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

// plain is ours as "go install" builds it, without a profile for the compiler.
const plain = benchdata.Plain

var peers = []peer{
	{name: ours, title: "adverb", prepare: prepareOurs, on: overAll},
	{name: plain, title: "adverb, no profile", prepare: prepareOurs, on: overAll, otherBuild: true},
	{name: "adverb_sleeps", title: "adverb, sleeping at once", prepare: prepareSleeping, on: overAll, env: "ADVERB_SPIN=0"},
	{name: "probe", title: "probe", missing: probeMissing, prepare: prepareProbe, bound: true},
	{name: "probe_single", title: "probe, single sends", missing: probeMissing, prepare: prepareSingleProbe},
	{name: "tcp", title: "Go TCP", prepare: prepareTCP},
	{name: "tcp_writev", title: "Go TCP, writev", prepare: prepareTCPLists},
	{name: "iwarp", title: "adverb iWARP", prepare: prepareIWARP("iwarp")},
	{name: "iwarp_crc", title: "adverb iWARP, CRC", prepare: prepareIWARP("iwarp_crc")},
	{name: "ucx", title: "UCX tcp", missing: missingProgram("ucx_perftest", "ucx-utils"), prepare: prepareUCX("tcp")},
	{name: "ofi_tcp", title: "libfabric tcp", missing: missingProgram("fi_pingpong", "libfabric-bin"), prepare: prepareLibfabric("tcp")},
	{name: "ofi_udp", title: "libfabric udp;ofi_rxd", missing: missingProgram("fi_pingpong", "libfabric-bin"), prepare: prepareLibfabric("udp;ofi_rxd")},
	{name: "memcpy", title: "memcpy, one thread", prepare: prepareMemcpy(1), on: overMemory, bound: true},
	{name: "memcpy_two", title: "memcpy, two threads", prepare: prepareMemcpy(2), on: overMemory, bound: true},
	{name: "ucx_posix", title: "UCX posix", missing: missingProgram("ucx_perftest", "ucx-utils"), prepare: prepareUCX("posix"), on: overMemory},
	{name: "ucx_cma", title: "UCX posix,cma", missing: missingProgram("ucx_perftest", "ucx-utils"), prepare: prepareUCX("posix,cma"), on: overMemory},
	{name: "ofi_shm", title: "libfabric shm", missing: missingProgram("fi_pingpong", "libfabric-bin"), prepare: prepareLibfabric("shm"), on: overMemory},
}

func prepareOurs(w *workload) *method {
	m := &method{measure: measurePair(ours)}
	if w.kind == kindBlocked {
		m.note = "CQ.Wait spins for a moment before it sleeps"
	}
	return m
}

// prepareSleeping is for where an end waits for the other.
func prepareSleeping(w *workload) *method {
	if w.kind != kindBlocked {
		return nil
	}
	return &method{note: "ADVERB_SPIN=0", measure: measurePair(ours)}
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
	case kindRead, kindSend, kindList:
		m.note = "as for WRITE: packets one way"
	}
	if w.lists() {
		m.note = joinNotes(m.note, "a system call for each train")
	}
	return m
}

// prepareSingleProbe is for short messages, of which a train has many.
func prepareSingleProbe(w *workload) *method {
	if w.kind.needsRDMA() || w.kind == kindList || !w.lists() {
		return nil
	}
	return &method{note: "a system call for each packet", measure: measurePair("probe_single")}
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// prepareIWARP returns how our own iWARP devices do a workload: over TCP.
func prepareIWARP(program string) func(*workload) *method {
	return func(w *workload) *method {
		switch w.kind {
		case kindSend, kindList:
			return &method{missing: "left out: iWARP has nothing that holds a sender back while the peer has no receive, so its programs count receives"}
		case kindWatched:
			return &method{missing: "left out: the server is not told of the client's memory"}
		}
		return &method{measure: measurePair(program)}
	}
}

func prepareTCP(w *workload) *method {
	if w.kind.needsRDMA() || w.kind == kindList {
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

// prepareTCPLists is TCP that hands over as many messages by one writev as ours does by one call, where they are short.
func prepareTCPLists(w *workload) *method {
	if w.kind.needsRDMA() || !w.lists() {
		return nil
	}
	return &method{note: fmt.Sprintf("one writev for %d of %s", listLength, sizeText(w.size)), measure: measurePair("tcp_writev")}
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
