package peer

// sender is the state by which a peer's IPv4 identifications and DF flags tell its implementation. The ICRC covers both
// fields, and a UDP socket does not show them. IPv6 has neither field; there the flow labels tell whether the peer is
// an adverb, and the ICRC leaves them out.
//
// A damaged packet passes by chance with these probabilities. With a check of the whole ICRC the
// probability would be 2^-32.
//
//	an adverb                          2^-24   identifications below maxTrain or just above, with DF
//	any other                          2^-16   any identification, DF as before
//	  whose DF changes, a first packet 2^-15   any identification, with or without DF
//
// The order of other implementations' identifications tells nothing that a receiver may rely on. Linux has one counter
// for each pair of hosts, for all QPs and programs, which also advances with time. Others have one counter for all their
// packets, or jump. A packet that is dropped for its identification would be a good one, which at best is repeated.
//
// Nothing is learned from a packet until the packet has made progress: until it had the PSN that was expected. So
// whoever forges packets has to guess the PSN before genuine packets can become implausible. Only misses changes
// before that; a higher count of them lets more packets pass, never fewer.
type sender struct {
	kind     Kind
	accepted ident // of the latest packet that made progress
	restarts int   // how often a counter began again in an adverb's range; over IPv6: packets in a row with an adverb's label
	misses   int   // packets since progress was made that did not fit
}

// Kind is the implementation that a peer seems to have.
type Kind uint8

const (
	Unknown    Kind = iota // no packet has come
	Adverb                 // identifications as link.Link.Send sets them, or flow labels as wire.Flow.Label
	Foreign                // identifications in no known order, DF always alike
	ForeignDFs             // identifications in no known order, some packets with DF and some without
)

// ident is an identification with its DF flag, as SolveID finds it.
type ident struct {
	id uint16
	df bool
}

// adverb reports whether i is the number of a segment, as link.Link.Send sets it. The receiver may see
// the segment at another place of a train than the sender.
func (i ident) adverb() bool { return i.df && i.id < maxTrain }

// leaves reports whether i continues a counter that was at o, where all identifications before were in an adverb's
// range. Such a packet is taken at once: on UC it would not come again.
func (i ident) leaves(o ident) bool { return i.df && i.id-o.id < maxTrain }

// judge judges a solved identification. If it fits the sender, judge returns the value that s has once the packet has
// made progress. If the sender has another kind than was believed, judge refuses maxMisses packets, which come again.
func (s *sender) judge(i ident) (next sender, ok bool) {
	switch {
	case s.kind == Unknown:
		return newSender(kindOf(i), i), true
	case s.kind == Adverb && i.adverb():
		return s.adverb(i), true
	case s.kind == Adverb && i.df && (s.restarts == 0 || i.leaves(s.accepted)):
		return newSender(Foreign, i), true // a counter that has never begun again may just have passed 0
	case s.kind == ForeignDFs, s.kind == Foreign && i.df == s.accepted.df:
		next = sender{kind: s.kind, accepted: i, restarts: s.restartsWith(i)}
		if next.restarts == steadyRestarts {
			next = sender{kind: Adverb, accepted: i, restarts: 1}
		}
		return next, true
	case s.misses < maxMisses:
		s.misses++
		return *s, false
	case s.kind == Foreign:
		return newSender(ForeignDFs, i), true
	}
	return newSender(Foreign, i), true
}

// adverb returns s after another packet with an adverb's identification.
func (s *sender) adverb(i ident) sender {
	return sender{kind: Adverb, accepted: i, restarts: min(s.restartsWith(i), steadyRestarts)}
}

// labelled returns s after another packet over IPv6. right says whether the packet has the flow label of an adverb.
func (s *sender) labelled(right bool) sender {
	if !right {
		return sender{}
	}
	return sender{kind: Adverb, restarts: min(s.restarts+1, steadyRestarts)}
}

// restartsWith returns how often the identifications, i included, have begun again in an adverb's range. Those of an
// adverb begin again with each train. A counter that passes through the range begins once.
func (s *sender) restartsWith(i ident) int {
	switch {
	case !i.adverb():
		return 0
	case s.kind != Unknown && i.id <= s.accepted.id:
		return s.restarts + 1
	}
	return s.restarts
}

func kindOf(i ident) Kind {
	if i.adverb() {
		return Adverb
	}
	return Foreign
}

func newSender(k Kind, i ident) sender { return sender{kind: k, accepted: i} }
