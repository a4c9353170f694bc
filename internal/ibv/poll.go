//go:build linux && (amd64 || arm64)

package ibv

import (
	"syscall"
	"unsafe"
)

// PollBatch is how many completions one call takes at most.
const PollBatch = 32

// Clock is a clock by which completions tell the time: a flag of enum ibv_create_cq_wc_flags.
type Clock uint64

// The clocks.
const (
	NoClock     Clock = 0
	DeviceClock Clock = 1 << 7  // IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
	Wallclock   Clock = 1 << 11 // IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK

	wcStandard = 1<<7 - 1 // IBV_WC_STANDARD_FLAGS: what ibv_poll_cq tells
)

// Poller is memory into which C puts the completions of a CQ. It has one user at a time.
type Poller struct {
	WCs   []WC     // PollBatch of them
	Times []uint64 // as many, if the CQ has a clock; otherwise nil

	block     block
	frame     *frame
	cq        Ref[CQ]
	poll, arm uintptr

	// Of a CQ with a clock.
	ex       *cqEx
	attr     []pollCQAttr
	readTime uintptr
}

// NewPoller returns the memory for a CQ, which CreateCQEx has made if there is a clock.
func NewPoller(c Ref[CQ], clock Clock) (*Poller, error) {
	b, err := take(512 + PollBatch*int(unsafe.Sizeof(WC{})+8))
	if err != nil {
		return nil, err
	}
	off := 0
	ops := &c.P().context.P().ops
	p := &Poller{block: b, cq: c, poll: ops.PollCQ, arm: ops.ReqNotifyCQ}
	p.frame = &cut[frame](b, &off, 1)[0]
	p.WCs = cut[WC](b, &off, PollBatch)
	if clock == NoClock {
		return p, nil
	}
	p.Times, p.attr = cut[uint64](b, &off, PollBatch), cut[pollCQAttr](b, &off, 1)
	p.attr[0].compMask = 0 // no attribute is given
	p.ex = Ref[cqEx](c).P()
	p.readTime = p.ex.readCompletionTS
	if clock == Wallclock {
		p.readTime = p.ex.readCompletionWall
	}
	if p.readTime == 0 {
		p.Free()
		return nil, missing(function{name: "the clock of completions"})
	}
	return p, nil
}

// Free gives the memory back.
func (p *Poller) Free() { p.block.give() }

// Poll takes up to n completions, and returns how many it took, or a negative number if the CQ has failed.
func (p *Poller) Poll(n int) int {
	if p.ex != nil {
		return p.pollEx(n)
	}
	return int(p.frame.call3(p.poll, p.cq.at, uintptr(n), first(p.WCs).at))
}

// pollEx is Poll of a CQ with a clock: ibv_start_poll, ibv_next_poll and ibv_end_poll, which are functions of the CQ.
func (p *Poller) pollEx(n int) int {
	if n == 0 {
		return 0
	}
	switch e := p.frame.call3(p.ex.startPoll, p.cq.at, first(p.attr).at, 0); {
	case e == int32(syscall.ENOENT):
		return 0
	case e != 0:
		return -max(int(e), 1)
	}
	got := 0
	for got < n {
		p.read(got)
		if got++; got < n && p.frame.call3(p.ex.nextPoll, p.cq.at, 0, 0) != 0 {
			break // nothing is left, or the next poll says why
		}
	}
	p.frame.call3(p.ex.endPoll, p.cq.at, 0, 0)
	return got
}

// read reads the completion at which the poll is. Each value is a call. Of a failed one there are no others.
func (p *Poller) read(i int) {
	const recv, withImm, withInv = 1 << 7, 1 << 1, 1 << 3
	ex, w := p.ex, &p.WCs[i]
	*w = WC{WRID: ex.wrID, Status: ex.status, QPNum: uint32(p.value(ex.readQPNum))}
	p.Times[i] = uint64(p.value(p.readTime))
	if w.Status != 0 {
		w.VendorErr = uint32(p.value(ex.readVendorErr))
		return
	}
	w.Opcode, w.WCFlags, w.ByteLen = uint32(p.value(ex.readOpcode)), uint32(p.value(ex.readWCFlags)), uint32(p.value(ex.readByteLen))
	if w.WCFlags&(withImm|withInv) != 0 {
		w.Imm = uint32(p.value(ex.readImmData)) // which is invalidated_rkey too
	}
	if w.Opcode&recv != 0 {
		w.SrcQP, w.SLID = uint32(p.value(ex.readSrcQP)), uint16(p.value(ex.readSLID))
		w.SL, w.DLIDPathBits = uint8(p.value(ex.readSL)), uint8(p.value(ex.readDLIDPathBits))
	}
}

// value calls a function of the CQ, or returns 0 where the driver has none. The bits beyond the function's type do not count.
func (p *Poller) value(fn uintptr) uintptr {
	if fn == 0 {
		return 0
	}
	p.frame.call3(fn, p.cq.at, 0, 0)
	return p.frame.ret
}

// Arm asks for an event.
func (p *Poller) Arm(solicitedOnly bool) error {
	var s uintptr
	if solicitedOnly {
		s = 1
	}
	if r := p.frame.call3(p.arm, p.cq.at, s, 0); r != 0 {
		return &Error{"ibv_req_notify_cq", errnoOf(r)}
	}
	return nil
}
