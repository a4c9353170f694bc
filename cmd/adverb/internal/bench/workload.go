package bench

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// kind is the kind of a workload.
type kind int

const (
	kindWrite   kind = iota // the client writes into the server's memory
	kindRead                // the client reads the server's memory
	kindSend                // the client sends messages
	kindList                // the same, and both ends post lists of listLength work requests
	kindAtomic              // the client adds to words of the server's memory, and gets the words from before
	kindPolled              // a message goes to and fro, and both ends poll for it
	kindBlocked             // the same, and both ends wait in a call that may sleep until it comes
	kindWatched             // each end writes into the other's memory when it sees there the other's latest write
)

// isLatency reports whether a workload is a message that goes to and fro.
func (k kind) isLatency() bool { return k == kindPolled || k == kindBlocked || k == kindWatched }

// needsRDMA reports whether TCP and bare UDP have nothing like it.
func (k kind) needsRDMA() bool { return k == kindAtomic || k == kindWatched }

// lists reports whether a sender of TCP or UDP may hand over several of these messages by one system call.
func (w *workload) lists() bool { return !w.kind.isLatency() && w.outstanding == manyOutstanding }

type workload struct {
	name        string
	title       string
	kind        kind
	size        int  // bytes of a message
	outstanding int  // operations at a time
	waits       bool // for completions, and leaves the core to others meanwhile
}

// Small messages have many under way, as programs that send many have them. Long ones have as many as keep any path
// full.
const (
	manyOutstanding = 128
	fewOutstanding  = 16

	listLength = 16 // divides manyOutstanding
)

var workloads = []workload{
	{"write_64", "WRITE 64 B", kindWrite, 64, manyOutstanding, false},
	{"write_4k", "WRITE 4 KiB", kindWrite, 4 << 10, manyOutstanding, false},
	{"write_64k", "WRITE 64 KiB", kindWrite, 64 << 10, fewOutstanding, false},
	{"write_1m", "WRITE 1 MiB", kindWrite, 1 << 20, fewOutstanding, false},
	{"read_1m", "READ 1 MiB", kindRead, 1 << 20, fewOutstanding, false},
	{"send_64", "SEND 64 B", kindSend, 64, manyOutstanding, false},
	{"send_64_list", "SEND 64 B in lists of 16", kindList, 64, manyOutstanding, false},
	{"fetch_add", "FETCH_ADD", kindAtomic, 8, manyOutstanding, false},
	{"lat_polled", "SEND 64 B one way, polled", kindPolled, 64, 1, false},
	{"lat_polled_4k", "SEND 4 KiB one way, polled", kindPolled, 4 << 10, 1, false},
	{"lat_blocked", "SEND 64 B one way, in a call that may sleep", kindBlocked, 64, 1, false},
	{"lat_write", "WRITE 8 B one way, seen in memory", kindWatched, 8, 1, false},
}

// pathWorkload is that of the tables over a bad path.
var pathWorkload = workload{"path", "WRITE 256 KiB", kindWrite, 256 << 10, fewOutstanding, true}

// unit is the unit of the workload's value: small messages are counted.
func (w *workload) unit() benchdata.Unit {
	switch {
	case w.kind.isLatency():
		return benchdata.Seconds
	case w.size < 4<<10:
		return benchdata.PerSecond
	}
	return benchdata.BytesPerSecond
}

// value is n operations in a time, in the workload's unit.
func (w *workload) value(n int64, d time.Duration) float64 {
	s := d.Seconds()
	switch w.unit() {
	case benchdata.Seconds:
		return s / float64(n) / 2 // an operation is there and back
	case benchdata.PerSecond:
		return float64(n) / s
	}
	return float64(n) * float64(w.size) / s
}

func (w *workload) data() benchdata.Workload {
	return benchdata.Workload{Name: w.name, Title: w.title, Unit: w.unit(), Size: w.size, Outstanding: w.outstanding}
}

// region is how much memory the messages go to, one behind the other and then from the start. It is the same for all
// peers: a region that fits into a nearer cache is faster.
func (w *workload) region() int { return max(w.size, 64<<10) }
