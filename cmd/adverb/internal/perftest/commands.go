// Package perftest has the programs of the package perftest, which measure bandwidth and latency:
// SENDs, RDMA WRITEs and READs, and atomics. They speak with the C programs of versions 5.70 and
// later, in their exchange of addresses and of results.
package perftest

import (
	"fmt"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/verbs"
)

// verb is the operation that a program measures.
type verb uint8

const (
	verbSend verb = iota
	verbWrite
	verbRead
	verbAtomic
)

// title is the programs' name for the verb.
func (v verb) title() string {
	return [...]string{"Send", "RDMA_Write", "RDMA_Read", "Atomic"}[v]
}

// oneSidedRead reports whether the peer answers with data, so that only RC and XRC have the operation.
func (v verb) oneSidedRead() bool { return v == verbRead || v == verbAtomic }

// kind has the properties that distinguish the eight programs.
type kind struct {
	name    string // as in "adverb send_bw"
	verb    verb
	latency bool // the program measures latency, not bandwidth
}

// types are the QP types that the program can test. QPTypeXRCSend stands for both of XRC.
func (k *kind) types() []verbs.QPType {
	switch {
	case k.verb == verbSend:
		return []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeXRCSend, verbs.QPTypeUC, verbs.QPTypeUD}
	case k.verb == verbWrite:
		return []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeXRCSend, verbs.QPTypeUC}
	}
	return []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeXRCSend}
}

// typeName is the programs' name for a QP type.
func typeName(t verbs.QPType) string {
	if t == verbs.QPTypeXRCSend {
		return "XRC"
	}
	return strings.TrimPrefix(t.String(), "QPT_")
}

// typeNames are the values of -c.
func (k *kind) typeNames() (names []string) {
	for _, t := range k.types() {
		names = append(names, typeName(t))
	}
	return names
}

// The commands.
var (
	SendBW    = newCommand(&kind{"send_bw", verbSend, false}, "Measure the bandwidth of SENDs")
	SendLat   = newCommand(&kind{"send_lat", verbSend, true}, "Measure the latency of SENDs")
	WriteBW   = newCommand(&kind{"write_bw", verbWrite, false}, "Measure the bandwidth of RDMA WRITEs")
	WriteLat  = newCommand(&kind{"write_lat", verbWrite, true}, "Measure the latency of RDMA WRITEs")
	ReadBW    = newCommand(&kind{"read_bw", verbRead, false}, "Measure the bandwidth of RDMA READs")
	ReadLat   = newCommand(&kind{"read_lat", verbRead, true}, "Measure the latency of RDMA READs")
	AtomicBW  = newCommand(&kind{"atomic_bw", verbAtomic, false}, "Measure the rate of atomic operations")
	AtomicLat = newCommand(&kind{"atomic_lat", verbAtomic, true}, "Measure the latency of atomic operations")
)

func newCommand(k *kind, short string) *cli.Command {
	return &cli.Command{
		Name:    k.name,
		Classic: []string{"ib_" + k.name},
		Short:   short,
		Flags:   k.flags(),
		Forms: []cli.Form{
			{Does: "wait for a client"},
			{Args: "<host>", Does: "measure against the server at <host>"},
		},
		Usage: usage,
		More:  more,
		Run:   func(inv *cli.Invocation) int { return run(inv, k) },
	}
}

func usage(w io.Writer, c *cli.Command, prog string) {
	cli.PrintForms(w, c, prog)
	fmt.Fprintln(w)
	cli.PrintFlags(w, c)
}

const more = `Two terminals of one machine; between two machines <host> is the server's name or address:
  PROG
  PROG localhost
Both ends take the same flags, and the other end may be the C program. Without -R the ends find each
other over TCP, with -R by the connection manager. Results are one-way times for SEND and WRITE, and
round trips for READ and atomics. All samples count: the C program leaves out the two largest.
`
