package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// process is an end of a cell, as the process that started it sees it.
type process struct {
	name   string
	cmd    *exec.Cmd
	in     io.WriteCloser
	words  *json.Encoder
	out    *json.Decoder
	stderr bytes.Buffer // whole once the process has ended
	once   sync.Once
}

// measurePair measures by two processes of this program, or of another build of it.
func measurePair(program string) func(context.Context, *cell) (benchdata.Cell, error) {
	return func(ctx context.Context, c *cell) (benchdata.Cell, error) {
		ctx, cancel := context.WithTimeout(ctx, c.limit())
		defer cancel()
		server, err := c.startEnd(ctx, program, atServer)
		if err != nil {
			return benchdata.Cell{}, err
		}
		defer server.end()
		client, err := c.startEnd(ctx, program, atClient)
		if err != nil {
			return benchdata.Cell{}, err
		}
		defer client.end()
		atServer, atClient, err := lead(server, client)
		if err != nil {
			if ctx.Err() == context.DeadlineExceeded {
				err = fmt.Errorf("not done after %v", c.limit())
			}
			return benchdata.Cell{}, err
		}
		return c.result(atServer, atClient), nil
	}
}

// startEnd starts an end.
func (c *cell) startEnd(ctx context.Context, program string, which int) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if c.peer.otherBuild {
		exe = c.plain
	}
	at := c.site.ends[which]
	p := &process{name: [2]string{"server", "client"}[which], cmd: exec.CommandContext(ctx, exe, commandName)}
	p.cmd.Args[0] = "adverb"
	carrier := "0"
	if c.site.network.memory {
		carrier = "1"
	}
	p.cmd.Env = append(os.Environ(), envChild+"=1", "ADVERB_SHM="+carrier)
	for _, env := range []string{c.peer.env, c.env} {
		if env != "" {
			p.cmd.Env = append(p.cmd.Env, env)
		}
	}
	p.cmd.Stderr = &p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := at.start(p.cmd); err != nil {
		return nil, err
	}
	p.words, p.out = json.NewEncoder(p.in), json.NewDecoder(out)
	o := order{
		Program: program, Server: which == atServer, Workload: c.w.name, Device: at.device, Addr: at.addr, PathMTU: c.site.network.pathMTU, Control: c.control,
		Warmup: c.warmup(), Time: c.time,
	}
	if c.profiles != "" {
		o.Profile = filepath.Join(c.profiles, fmt.Sprintf("%s-%s-%s-%s-%d.pprof", c.site.network.name, c.w.name, c.peer.name, p.name, c.round+1))
	}
	return p, p.words.Encode(o)
}

// next reads the end's next report.
func (p *process) next() (report, error) {
	var r report
	if err := p.out.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
			err = errors.New("it ended too early")
		}
		return r, p.failed(err)
	}
	if r.Failed != "" {
		return r, p.failed(errors.New(r.Failed))
	}
	return r, nil
}

func (p *process) failed(err error) error {
	p.end()
	s := strings.TrimSpace(p.stderr.String())
	if s != "" {
		s = ": " + s
	}
	return fmt.Errorf("the %s: %w%s", p.name, err, s)
}

// end ends the process, which has no reason to go on.
func (p *process) end() {
	p.once.Do(func() {
		p.in.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
}

// lead leads two ends through a cell: see order. It returns their results.
func lead(server, client *process) (atServer, atClient *result, err error) {
	var addresses [2]json.RawMessage
	for i, p := range [2]*process{server, client} {
		r, err := p.next()
		if err != nil {
			return nil, nil, err
		}
		addresses[i] = r.Address
	}
	if err := server.words.Encode(word{Peer: addresses[1], PID: client.cmd.Process.Pid}); err != nil {
		return nil, nil, server.failed(err)
	}
	if _, err := server.next(); err != nil {
		return nil, nil, err
	}
	if err := client.words.Encode(word{Peer: addresses[0], PID: server.cmd.Process.Pid}); err != nil {
		return nil, nil, client.failed(err)
	}

	// Whichever end has measured, the other stops then.
	type outcome struct {
		*result
		err error
	}
	outcomes := [2]chan outcome{make(chan outcome, 1), make(chan outcome, 1)}
	for i, p := range [2]*process{server, client} {
		go func() {
			r, err := p.next()
			outcomes[i] <- outcome{r.Result, err}
		}()
	}
	var got [2]outcome
	for range got {
		select {
		case got[0] = <-outcomes[0]:
		case got[1] = <-outcomes[1]:
		}
		if got[0].err != nil || got[1].err != nil {
			return nil, nil, errors.Join(got[0].err, got[1].err)
		}
		for _, p := range [2]*process{server, client} {
			p.words.Encode(word{Stop: true}) // a process that stopped already does not read it
		}
	}
	if got[0].result == nil || got[1].result == nil {
		return nil, nil, errors.New("an end reported no result")
	}
	return got[0].result, got[1].result, nil
}

// result makes one of the results of both ends.
func (c *cell) result(server, client *result) benchdata.Cell {
	var out benchdata.Cell
	var counts benchdata.Counts
	total, served := int64(0), int64(0) // all operations, and allocations of an end that only served
	for which, r := range [2]*result{server, client} {
		if r.Ops > 0 {
			out.CPU = cpuOf(r, which == atServer)
			out.Ops, out.Seconds, out.Value = r.Ops, r.Elapsed.Seconds(), c.w.value(r.Ops, r.Elapsed)
			counts.Allocs = r.Allocs
		} else {
			served = r.Allocs
		}
		counts.Packets += r.Packets
		counts.Repeats += r.Repeats
		counts.RNRNAKs += r.RNRNAKs
		total = max(total, r.Total)
	}
	if out.Ops == 0 {
		out.Failed = "nothing was measured"
	}
	if total > 0 { // the warm-up had its share
		counts.Allocs += served * out.Ops / total
		counts.Packets = counts.Packets * out.Ops / total
	}
	out.Counts = &counts
	return out
}

// cpuOf returns the CPU time of both ends, as the one that measured has read it, or nil where it is not known.
func cpuOf(r *result, isServer bool) *benchdata.CPU {
	if !r.KnowsCPU {
		return nil
	}
	own, other := r.OwnCPU.Seconds(), r.PeerCPU.Seconds()
	if isServer {
		own, other = other, own
	}
	return &benchdata.CPU{Client: own, Server: other}
}
