package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// demoWho is an end of the demonstration.
type demoWho int

const (
	demoServer demoWho = iota
	demoClient
)

func (w demoWho) String() string { return [...]string{"server", "client"}[w] }
func (w demoWho) other() demoWho { return 1 - w }

// demoColumn is where the right column starts: behind the longest line that has something
// beside it.
const demoColumn = 40

// demoView prints what happens, in the order in which it does: everybody tells it of a thing
// before doing it, or after having seen it. When it is quiet it keeps what each program
// prints, and prints one after the other.
type demoView struct {
	quiet bool

	mu      sync.Mutex
	w       io.Writer
	lines   [2][]string // when quiet, by demoWho
	packets int
	start   time.Time
}

func newDemoView(w io.Writer, quiet bool) *demoView { return &demoView{w: w, quiet: quiet} }

// row prints one line. The caller holds v.mu.
func (v *demoView) row(left, right string) {
	if right == "" {
		fmt.Fprintf(v.w, "%s\n", left)
		return
	}
	if len(left) >= demoColumn { // too long to have something beside it
		fmt.Fprintf(v.w, "%s\n", left)
		left = ""
	}
	fmt.Fprintf(v.w, "%-*s| %s\n", demoColumn, left, right)
}

// command shows how the program of an end is called.
func (v *demoView) command(who demoWho, line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		v.lines[who] = append(v.lines[who], "$ "+line)
		return
	}
	v.row(fmt.Sprintf("%-8s$ %s", who, line), "")
}

// say is a line that the program of an end prints, and what is to be said about it.
func (v *demoView) say(who demoWho, line, note string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		v.lines[who] = append(v.lines[who], line)
		return
	}
	v.row(fmt.Sprintf("%-8s%s", who, line), note)
}

// note is something that happens underneath at an end.
func (v *demoView) note(who demoWho, format string, args ...any) {
	if v.quiet {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.row(who.String(), fmt.Sprintf(format, args...))
}

// packet is a packet that an end sends.
func (v *demoView) packet(from demoWho, datagram []byte) {
	var p wire.Packet
	text := "cannot be decoded"
	if err := p.Decode(datagram); err == nil {
		p.MigReq = false // always set, and no part of this story
		text = strings.TrimPrefix(p.String(), "RC ")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.packets++
	if !v.quiet {
		v.row(fmt.Sprintf("%-8s--> %s", from, from.other()), text)
	}
}

func (v *demoView) begin(mode demoMode) {
	v.mu.Lock()
	v.start, v.packets = time.Now(), 0
	v.lines = [2][]string{}
	if !v.quiet {
		v.row("=== RDMA "+string(mode)+" ===", "")
		v.row("who     what it prints", "what happens underneath; of a packet: opcode, QP and packet sequence number (psn)")
		v.row("", "that it is sent to, \"ack\" where an acknowledgement is asked for, and the fields of its other headers")
	}
	v.mu.Unlock()
	v.command(demoServer, "rdma-server "+string(mode))
}

func (v *demoView) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		for _, lines := range v.lines {
			for _, l := range lines {
				fmt.Fprintf(v.w, "%s\n", l)
			}
		}
		return
	}
	v.row("", fmt.Sprintf("%d packets in %v", v.packets, time.Since(v.start).Round(10*time.Microsecond)))
	fmt.Fprintf(v.w, "\n")
}
