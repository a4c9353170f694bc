package bench

import (
	"encoding/json"
	"time"
)

// The two ends of a cell are processes: this program, started again with envChild set. They talk with
// the process that the user started over their standard input and output, one line of JSON at a time:
//
//	it → both      order
//	both → it      report with Address
//	it → server    word with Peer, the client's address
//	server → it    report with Ready
//	it → client    word with Peer, the server's address
//	one end → it   report with Result; that end has measured
//	it → other     word with Stop
//	other → it     report with Result
//
// An end that fails sends a report with Failed instead. An end whose standard input closes ends too.

// envChild makes the program an end of a cell.
const envChild = "ADVERB_BENCH_CHILD"

// order is the work of an end.
type order struct {
	Program  string // see programs
	Server   bool
	Workload string
	Device   string // name of the RDMA device
	Addr     string // own IP address
	PathMTU  int    // bytes of payload in a packet
	Control  string // of congestion, as our devices or TCP name it; empty: the default
	Warmup   time.Duration
	Time     time.Duration
	Profile  string // file for a CPU profile, or empty

	peer int // the other end's process
}

// word is the message to an end after the order.
type word struct {
	Peer json.RawMessage
	PID  int // the other end's process, with Peer
	Stop bool
}

// report is the message of an end.
type report struct {
	Address json.RawMessage `json:",omitempty"`
	Ready   bool            `json:",omitempty"`
	Result  *result         `json:",omitempty"`
	Failed  string          `json:",omitempty"`
}

// result is the result of one end. Ops is 0 at the end that does not measure.
type result struct {
	Ops     int64
	Elapsed time.Duration
	Total   int64 // operations with those of the warm-up
	Allocs  int64 // while it measured; at the end that does not measure, since it was connected
	Packets int64 // sent since it was connected
	Repeats int64 // of these, sent again
	RNRNAKs int64 // received: the program at the other end was too late with its receives

	// CPU time while it measured, of this end and of the other, where it is known.
	OwnCPU, PeerCPU time.Duration
	KnowsCPU        bool
}
