package fault

import (
	"encoding/binary"
	"math"
	"net/netip"
	"time"
)

// Limits that this implementation chose.
const (
	maxHoldBehind   = 8                // datagrams that overtake a held one
	maxHold         = time.Millisecond // how long a datagram is held
	maxCorruptFlips = 3                // bits that flip; the ICRC certainly finds up to 3 in a datagram of 4 KiB
)

// Faults says how a network disturbs datagrams. Loss, Duplicate, Reorder, Corrupt and MarkCE are
// probabilities from 0 to 1, for each datagram.
type Faults struct {
	Loss      float64
	Duplicate float64 // a second copy arrives, at once or behind up to 8 others
	Reorder   float64 // the datagram is held back behind the next 1 to 8 of its pair, for 1 ms at most
	Corrupt   float64 // 1 to 3 bits of the payload flip

	// Every datagram is delayed by Delay and a random part of Jitter. Jitter does not change the
	// order: a datagram never arrives before an earlier one of the same pair.
	Delay, Jitter time.Duration

	// MarkCE is the probability that a datagram is marked: its ECN bits become link.CE. A datagram
	// that is link.NotECT is never marked, and not dropped instead.
	MarkCE float64

	// Rate is how many bytes of payload a Queue lets through in a second; 0 sets no limit. Faster datagrams wait, as
	// at the port of a switch. Nothing is dropped while it waits for Rate.
	Rate int64

	// MarkCEAbove is a length of the queue in bytes; 0 sets none. A datagram that finds more bytes in the queue is
	// marked as well. Datagrams that wait for Rate and those that wait for the receiver count.
	MarkCEAbove int
}

// Fate is the fate of one datagram.
type Fate struct {
	Lost       bool
	Delay      time.Duration
	HoldBehind int // 0, or the number of datagrams of the pair that overtake this one
	Flips      int // bits to flip
	Marked     bool

	Duplicate     bool
	DuplicateHold int // HoldBehind of the second copy

	base uint64 // of the draws that Corrupt makes
}

// Dice decide the fates of the datagrams of one pair of addresses. The fate of the n-th datagram depends on the seed,
// the pair and n only, and not on the datagrams of other pairs.
type Dice struct{ key uint64 }

// NewDice returns the dice for the datagrams from src to dst.
func NewDice(seed uint64, src, dst netip.Addr) Dice {
	key := mix(seed + golden)
	for _, a := range [2]netip.Addr{src, dst} {
		b := a.As16()
		key = mix(key ^ binary.BigEndian.Uint64(b[:8]))
		key = mix(key ^ binary.BigEndian.Uint64(b[8:]) + golden)
	}
	return Dice{key}
}

// Each decision has its own draw. So changing one probability does not change the other decisions.
const (
	drawLoss = iota
	drawDuplicate
	drawDuplicateHold
	drawReorder
	drawHoldBehind
	drawCorrupt
	drawFlips
	drawJitter
	drawBits // and the maxCorruptFlips-1 that follow
	drawMark = drawBits + maxCorruptFlips
)

// Fate returns the fate of the n-th datagram under f.
func (d Dice) Fate(f *Faults, n uint64) Fate {
	base := mix(d.key ^ mix(n+golden))
	t := Fate{base: base, Delay: f.Delay}
	t.draw(f)
	return t
}

// draw decides what f does.
func (t *Fate) draw(f *Faults) {
	base := t.base
	if f.Jitter > 0 {
		t.Delay += time.Duration(draw(base, drawJitter) % uint64(f.Jitter))
	}
	if chance(base, drawLoss, f.Loss) {
		t.Lost = true
		return
	}
	if chance(base, drawDuplicate, f.Duplicate) {
		t.Duplicate = true
		t.DuplicateHold = int(draw(base, drawDuplicateHold) % (maxHoldBehind + 1))
	}
	if chance(base, drawReorder, f.Reorder) {
		t.HoldBehind = 1 + int(draw(base, drawHoldBehind)%maxHoldBehind)
	}
	if chance(base, drawCorrupt, f.Corrupt) {
		t.Flips = 1 + int(draw(base, drawFlips)%maxCorruptFlips)
	}
	t.Marked = chance(base, drawMark, f.MarkCE)
}

// Corrupt flips t.Flips bits of payload, all different.
func (t *Fate) Corrupt(payload []byte) {
	bits := uint64(len(payload)) * 8
	var flipped [maxCorruptFlips]uint64
	for i := 0; i < t.Flips && uint64(i) < bits; i++ {
		bit := draw(t.base, drawBits+uint64(i)) % bits
		for j := 0; j < i; {
			if flipped[j] == bit {
				bit = (bit + 1) % bits
				j = 0
				continue
			}
			j++
		}
		flipped[i] = bit
		payload[bit/8] ^= 1 << (bit % 8)
	}
}

const golden = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio, the step of splitmix64

// mix is the finalizer of splitmix64, a bijection that spreads each input bit over all.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// draw returns the i-th number of the splitmix64 sequence that starts at base.
func draw(base, i uint64) uint64 { return mix(base + (i+1)*golden) }

func chance(base, i uint64, p float64) bool {
	return p > 0 && float64(draw(base, i)>>11) < p*math.Exp2(53)
}
