package hca

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/queue"
)

// A goroutine that goes to sleep, and is woken by the very next datagram, costs more than one that looks at
// the link a few times more: the sleep and the wake-up are several system calls, and on a virtual machine
// the core halts. The wake-up may cost more still: the kernel likes to wake a thread on the core of the sending
// thread, and while both share this core, another one idles. So a goroutine spins before it sleeps, if its latest
// sleep was shorter than the longest spin. Each datagram of a stream lengthens the spin, so that
// the target of the stream stays awake as long as its requester works. If a sleep was longer, the next spin is
// shorter, and soon there is none: an idle device costs nothing.
type spin struct {
	budget int           // looks that the next spin may take
	each   int           // looks more for each datagram
	left   int           // looks that this spin may still take
	end    time.Duration // of this spin, however many looks are left
	others *queue.GiveWay
}

func newSpin() spin { return spin{others: queue.NewGiveWay()} }

const (
	// streamShort is the longest sleep within a stream. Each datagram of a stream lengthens the spin by
	// spinEach looks, up to spinStream times Config.Spin.
	streamShort = 2 * time.Millisecond
	spinEach    = 64
	spinStream  = 10

	// spinMost is the longest spin, where looks are slow.
	spinMost = time.Millisecond

	// A spin yields its core after each yieldEach looks. Without that the kernel leaves a thread that spins on
	// its core for milliseconds. The program that waits for the packet, or the peer's program, may need that core.
	yieldEach = 4
)

// found is called when a look has found n datagrams. most is Config.Spin.
func (s *spin) found(now time.Duration, n, most int) {
	s.end = now + spinMost
	s.left = max(min(s.budget, most), min(s.left+n*s.each, spinStream*most))
	s.others.Begin()
}

// mayLook reports whether to look once more before sleeping.
func (s *spin) mayLook(now time.Duration) bool {
	if s.left == 0 || now > s.end {
		return false
	}
	s.left--
	return true
}

// yield is called after a look that has found nothing.
func (s *spin) yield(y *queue.Yielder) {
	if s.left%yieldEach == 0 {
		y.Yield()
	}
	s.others.Look()
}

// slept is called after a sleep.
func (s *spin) slept(d time.Duration) {
	s.budget, s.left = queue.NextSpin(s.budget, d), 0
	if d > streamShort {
		s.each /= 4
	} else {
		s.each = max(1, min(2*s.each, spinEach))
	}
}
