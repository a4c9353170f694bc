package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// role is an end of the demonstration.
type role int

const (
	roleServer role = iota
	roleClient
)

func (w role) String() string { return [...]string{"server", "client"}[w] }
func (w role) other() role    { return 1 - w }

// rightColumn is where the right column starts. It leaves room for the longest line that has
// something beside it.
const rightColumn = 40

// view prints the events, in their order: an end tells the view of a step before it takes the step, or after it has
// seen the step. A quiet view collects each program's output, and prints one program after the other.
type view struct {
	quiet bool

	mu      sync.Mutex
	w       io.Writer
	lines   [2][]string // when quiet, by role
	packets int
	start   time.Time
}

func newView(w io.Writer, quiet bool) *view { return &view{w: w, quiet: quiet} }

// row prints one line. The caller holds v.mu.
func (v *view) row(left, right string) {
	if right == "" {
		fmt.Fprintf(v.w, "%s\n", left)
		return
	}
	if len(left) >= rightColumn { // too long to have something beside it
		fmt.Fprintf(v.w, "%s\n", left)
		left = ""
	}
	fmt.Fprintf(v.w, "%-*s| %s\n", rightColumn, left, right)
}

// command shows how the program of an end is called.
func (v *view) command(who role, line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		v.lines[who] = append(v.lines[who], "$ "+line)
		return
	}
	v.row(fmt.Sprintf("%-8s$ %s", who, line), "")
}

// say shows a line that the program of an end prints, with a note about it.
func (v *view) say(who role, line, note string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.quiet {
		v.lines[who] = append(v.lines[who], line)
		return
	}
	v.row(fmt.Sprintf("%-8s%s", who, line), note)
}

// note shows something that happens underneath at an end.
func (v *view) note(who role, format string, args ...any) {
	if v.quiet {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.row(who.String(), fmt.Sprintf(format, args...))
}

// Write writes the lines of a trace between the others.
func (v *view) Write(line []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.w.Write(line)
}

// packet shows a packet that an end sends.
func (v *view) packet(from role, datagram []byte) {
	var p wire.Packet
	text := "cannot be decoded"
	if err := p.Decode(datagram); err == nil {
		p.MigReq = false // it is always set, and of no interest here
		text = strings.TrimPrefix(p.String(), "RC ")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.packets++
	if !v.quiet {
		v.row(fmt.Sprintf("%-8s--> %s", from, from.other()), text)
	}
}

func (v *view) begin(mode rwdemo.Mode) {
	v.mu.Lock()
	v.start, v.packets = time.Now(), 0
	v.lines = [2][]string{}
	if !v.quiet {
		v.row("=== RDMA "+string(mode)+" ===", "")
		v.row("who     its output", "the events underneath; of a packet: opcode, QP and packet sequence number (psn)")
		v.row("", "that it is sent to, \"ack\" where an acknowledgement is asked for, and the fields of its other headers")
	}
	v.mu.Unlock()
	v.command(roleServer, "rdma-server "+string(mode))
}

func (v *view) end() {
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
