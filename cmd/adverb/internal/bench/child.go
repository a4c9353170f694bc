package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

// An end is one end's part in a cell.
type end interface {
	// open returns the data that the other end needs.
	open() (address any, err error)

	// connect takes the data of the other end's open. The server's is called first.
	connect(address json.RawMessage) error

	// run works until it has measured, or until stop is set. The result of an end that measured has its allocations
	// meanwhile.
	run(stop *stopper) (result, error)
}

// programs make the ends of those peers that are part of this program.
var programs = map[string]func(*order, *workload) end{
	"adverb":    newRDMAEnd,
	"iwarp":     newIWARPEnd,
	"iwarp_crc": newIWARPCRCEnd,
	"tcp":       newTCPEnd,
	"probe":     newProbeEnd,

	"tcp_writev":   newTCPListEnd,
	"probe_single": newSingleProbeEnd,
}

// A stopper tells an end to stop.
type stopper struct {
	context.Context
	set atomic.Bool // the same for those who look all the time
}

// runChild is the program as an end of a cell.
func runChild(inv *cli.Invocation) int {
	in, out := json.NewDecoder(inv.Stdin), json.NewEncoder(inv.Stdout)
	var o order
	if err := in.Decode(&o); err != nil {
		return inv.Fail(fmt.Errorf("%s is set, but no order came: %w", envChild, err), "")
	}
	ctx, cancel := context.WithCancel(inv.Ctx)
	defer cancel()
	if err := o.carryOut(ctx, cancel, in, out); err != nil {
		out.Encode(report{Failed: err.Error()})
		return cli.ExitError
	}
	return cli.ExitOK
}

var errUnknownOrder = errors.New("the order names no workload or program")

func (o *order) carryOut(ctx context.Context, cancel context.CancelFunc, in *json.Decoder, out *json.Encoder) error {
	all := append(slices.Clip(workloads), pathWorkload)
	i := slices.IndexFunc(all, func(w workload) bool { return w.name == o.Workload })
	program := programs[o.Program]
	if i < 0 || program == nil {
		return errUnknownOrder
	}
	e := program(o, &all[i])
	address, err := e.open()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(address)
	if err != nil {
		return err
	}
	if err := out.Encode(report{Address: raw}); err != nil {
		return err
	}
	var w word
	if err := in.Decode(&w); err != nil {
		return err
	}
	o.peer = w.PID
	if err := e.connect(w.Peer); err != nil {
		return err
	}
	if o.Server {
		if err := out.Encode(report{Ready: true}); err != nil {
			return err
		}
	}

	stop := &stopper{Context: ctx}
	go func() {
		var w word
		in.Decode(&w) // Stop, or the end of the input
		stop.set.Store(true)
		cancel()
	}()
	if err := startProfile(o.Profile); err != nil {
		return err
	}
	before := mallocs()
	r, err := e.run(stop)
	if r.Ops == 0 { // it only served: all that it has done since then counts
		r.Allocs = mallocs() - before
	}
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	if err := out.Encode(report{Result: &r}); err != nil {
		return err
	}
	<-ctx.Done() // unacknowledged packets are repeated meanwhile
	return nil
}

// startProfile starts a CPU profile, if it has a name.
func startProfile(name string) error {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(f) // the file closes when the process ends
}

// settle is for how long a connection may take to come about, and an end to answer.
const settle = 10 * time.Second
