package diagnose

import (
	"errors"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// What a file does not have of the packets that were sent.

// cutShort tells of a file that ends too early: in the middle of a frame, or of a message.
func (a *Analyzer) cutShort() {
	const soon = int64(time.Second)
	cut := errors.Is(a.readErr, capture.ErrCut)
	open, frames := 0, []int{}
	for f := a.oldest; f != nil && !a.found.live; f = f.newer {
		at := 0
		switch {
		case !f.acknowledged() || a.last-f.last > soon:
		case f.respOpen:
			at = f.respFrame
		case f.inMessage && f.silentTries == 0 && !f.nakked && !f.rnrLast && !f.explained:
			at = f.reqFrame
		}
		if at == 0 {
			continue
		}
		if open++; len(frames) < maxFrames {
			frames = append(frames, at)
		}
	}
	if !cut && open == 0 {
		return
	}
	x := a.found.add(capCut, "")
	if x == nil {
		return
	}
	if open > 0 {
		x.Count, x.Frames = open, frames
		x.Words = words("Its last packets are of %s that it does not have to the end.", counted(open, "message"))
	}
	if !cut {
		x.Certainty, x.WrongIf = Likely, "the program or its host has ended just then."
	}
}

// unaskedResponses: responses to a READ are missing, and the requester goes on without asking for them. So it has them.
func (a *Analyzer) unaskedResponses(f *flow) {
	const soon = int64(time.Second)
	g := f.peer
	if f.unaskedOf == 0 || g == nil || g.silentTries > 0 || g.reqFrame < f.unasked.frame && a.last-f.unasked.at < soon {
		return
	}
	if x := a.mark(f, capHole, f.unasked.frame); x != nil && x.Count == 1 {
		x.Words = words("A response to a READ, %v, was not asked for again and is not in the file.", f.unasked)
	}
}
