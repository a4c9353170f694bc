package hca

import (
	"net/netip"
	"time"
)

// ids is what is known of a peer's IPv4 identifications and DF flag. The ICRC covers them, and a UDP
// socket does not tell them. Over IPv6, where neither is, it is what the flow labels tell, which the ICRC
// leaves out: whether the peer is an adverb.
//
// A damaged packet passes by chance with these probabilities. With a check of the whole ICRC the
// probability would be 2^-32.
//
//	a sender such as ourselves      2^-24   identifications below ownIDs or just above, with DF
//	one that counts                 2^-20   within idWindow of its latest, DF as before
//	  with several QPs here         2^-19   of its latest on this QP, or on any
//	  after idSilence, or on UC     2^-16   any identification, DF as before
//	one without a count, or a first packet
//	                                2^-15   any identification, with or without DF
//
// Between a packet that follows the latest at once and one that comes after idSilence, the
// probability grows with the time. Linux is the sender that counts: once for each pair of hosts, for
// all QPs and programs, and further with the time that passes. On UC any identification is taken,
// because nobody repeats what is dropped.
//
// Nothing is learned from a packet until it has made progress: until it had the PSN that was waited
// for. So somebody who forges packets has to guess the PSN too, before genuine packets become implausible.
// Only misses and refused change before that. They let more pass, never less.
type ids struct {
	kind     idsKind
	accepted ident // the latest of a packet that made progress
	steady   int   // packets in a row that look like a count, of a sender without one
	restarts int   // of a count among ours; over IPv6 packets in a row with the label of an adverb

	refused ident // the latest that did not fit
	misses  int   // those that did not fit since progress was made
}

type idsKind uint8

const (
	idsUnknown idsKind = iota // nothing has come
	idsOurs                   // as link.Link.Send has them, or wire.Flow.Label
	idsCount                  // counting up
	idsNoCount                // in no order that we know
)

// ident is an identification with its DF flag, as SolveID finds it.
type ident struct {
	id uint16
	df bool
}

// near reports whether i fits a count that reached o some packets earlier, or will reach it later.
func (i ident) near(o ident) bool { return i.within(o, 0) }

// within is near for a count that may have gone on by up to more.
func (i ident) within(o ident, more uint32) bool {
	return i.df == o.df && uint32(i.id-o.id+idWindow/2) < idWindow+more
}

// ours reports whether i is the number of a segment, as link.Link.Send sets it. The receiver may see
// the segment at another place of a train than the sender.
func (i ident) ours() bool { return i.df && i.id < ownIDs }

// leaves reports whether i continues a count that was at o, where all before looked like ours. It is
// taken at once: on UC the packet would not come again.
func (i ident) leaves(o ident) bool { return i.df && i.id-o.id < ownIDs }

// A sender is what all QPs of an engine have in common of one source address.
type sender struct {
	latest ident         // of a packet that made progress
	at     time.Duration // when it came
	known  bool          // there was one
}

// fits reports whether i fits a count that was at s.latest then. How far it may have gone on since
// depends on the time: other programs of our host may have heard from the sender.
func (s *sender) fits(i ident, now time.Duration) bool {
	if !s.known {
		return false
	}
	silence := min(max(0, now-s.at), idSilence)
	return i.within(s.latest, uint32(silence*(1<<16)/idSilence))
}

// judge judges a solved identification. If it fits the sender, judge returns what is known of the
// sender once the packet has made progress. A count that jumps costs one packet, which comes again. A
// sender without a count costs idMisses packets.
func (s *ids) judge(i ident, from *sender, now time.Duration, unreliable bool) (next ids, ok bool) {
	confirmed := s.misses > 0 && i.near(s.refused) // two that fit each other, not the sender so far
	switch s.kind {
	case idsUnknown:
		return idsAs(kindOf(i), i), true
	case idsOurs:
		if i.ours() {
			return s.ours(i), true
		}
		// What never began again may be a count that has only just passed 0.
		if i.leaves(s.accepted) || s.restarts == 0 && i.df && (unreliable || from.fits(i, now)) {
			return idsAs(idsCount, i), true
		}
	case idsCount:
		if i.near(s.accepted) || from.fits(i, now) || unreliable && i.df == s.accepted.df {
			next = ids{kind: idsCount, accepted: i, restarts: s.restartsWith(i)}
			if next.restarts == idSteady {
				next = ids{kind: idsOurs, accepted: i, restarts: 1}
			}
			return next, true
		}
	case idsNoCount:
		next = ids{kind: idsNoCount, accepted: i}
		if i.near(s.accepted) {
			next.steady = s.steady + 1
		}
		if next.steady == idSteady {
			next = idsAs(kindOf(i), i)
		}
		return next, true
	}
	s.refused = i
	switch {
	case confirmed:
		return idsAs(kindOf(i), i), true
	case s.misses >= idMisses:
		return idsAs(idsNoCount, i), true
	}
	s.misses++
	return *s, false
}

// ours is s after another packet such as ours.
func (s *ids) ours(i ident) ids {
	return ids{kind: idsOurs, accepted: i, restarts: min(s.restartsWith(i), idSteady)}
}

// labelled is s after another packet over IPv6, which has the flow label of an adverb or another one.
func (s *ids) labelled(right bool) ids {
	if !right {
		return ids{}
	}
	return ids{kind: idsOurs, restarts: min(s.restarts+1, idSteady)}
}

// restartsWith returns how often a count has begun again in the range of ours, i included. Ours begin
// again with each train. A count that passes through the range does so once.
func (s *ids) restartsWith(i ident) int {
	switch {
	case !i.ours():
		return 0
	case s.kind != idsUnknown && i.id <= s.accepted.id:
		return s.restarts + 1
	}
	return s.restarts
}

func kindOf(i ident) idsKind {
	if i.ours() {
		return idsOurs
	}
	return idsCount
}

func idsAs(k idsKind, i ident) ids { return ids{kind: k, accepted: i} }

// senders are the senders that an engine knows, by their address. A QP keeps its own for as long as it
// is connected, so what is forgotten here costs nothing but the QPs that share it.
type senders map[netip.Addr]*sender

// of returns the sender with an address, of which nothing may be known yet.
func (s *senders) of(a netip.Addr) *sender {
	if found := (*s)[a]; found != nil {
		return found
	}
	if *s == nil {
		*s = senders{}
	}
	for other := range *s {
		if len(*s) < maxSenders {
			break
		}
		delete(*s, other) // any one
	}
	made := new(sender)
	(*s)[a] = made
	return made
}
