package hca

// ids is what is known of a peer's IPv4 identifications and DF flag. The ICRC covers them, and a UDP
// socket does not tell them.
//
// A damaged packet passes by chance with these probabilities. With a check of the whole ICRC the
// probability would be 2^-32.
//
//	a sender such as ourselves   2^-24   identifications below ownIDs or just above, with DF
//	one that counts              2^-20   within idWindow of its latest, DF as before
//	one without a count          2^-15   any identification, with or without DF
//
// The first packet of a connection decides between the first two. It has 2^-15.
type ids struct {
	kind     idsKind
	accepted ident // the latest of a packet that was taken
	refused  ident // the latest of one that was not
	misses   int   // in a row
	steady   int   // packets in a row that look like a count, of a sender without one
	restarts int   // of a count among ours
}

type idsKind uint8

const (
	idsUnknown idsKind = iota // nothing has come
	idsOurs                   // as link.Link.Send has them
	idsCount                  // counting up
	idsNoCount                // in no order that we know
)

// ident is an identification with its DF flag, as SolveID finds it.
type ident struct {
	id uint16
	df bool
}

// near reports whether i fits a count that reached o some packets earlier, or will reach it later.
func (i ident) near(o ident) bool { return i.df == o.df && i.id-o.id+idWindow/2 < idWindow }

// ours reports whether i is the number of a segment, as link.Link.Send sets it. The receiver may see
// the segment at another place of a train than the sender.
func (i ident) ours() bool { return i.df && i.id < ownIDs }

// leaves reports whether i continues a count that was at o, where all before looked like ours. It is
// taken at once: on UC the packet would not come again.
func (i ident) leaves(o ident) bool { return i.df && i.id-o.id < ownIDs }

// plausible reports whether a solved identification fits the sender. A count that jumps costs one
// packet, which comes again. A sender without a count costs idMisses packets.
func (s *ids) plausible(i ident) bool {
	confirmed := s.misses > 0 && i.near(s.refused) // two in a row that fit each other, not the sender so far
	switch s.kind {
	case idsUnknown:
		return s.accept(s.kindOf(i), i)
	case idsOurs:
		if i.ours() {
			return s.accept(idsOurs, i)
		}
		if confirmed || i.leaves(s.accepted) {
			return s.accept(idsCount, i)
		}
	case idsCount:
		if i.near(s.accepted) {
			restarts := s.restartsWith(i)
			if restarts == idSteady {
				return s.accept(idsOurs, i)
			}
			*s = ids{kind: idsCount, accepted: i, restarts: restarts}
			return true
		}
		if confirmed {
			return s.accept(s.kindOf(i), i)
		}
	case idsNoCount:
		if s.steady++; !i.near(s.accepted) {
			s.steady = 0
		}
		if s.steady == idSteady {
			return s.accept(s.kindOf(i), i)
		}
		s.accepted = i
		return true
	}
	s.refused = i
	if s.misses++; s.misses > idMisses {
		return s.accept(idsNoCount, i)
	}
	return false
}

// restartsWith returns how often a count has begun again in the range of ours, i included. Ours begin
// again with each train. A count that passes through the range does so once.
func (s *ids) restartsWith(i ident) int {
	switch {
	case !i.ours():
		return 0
	case i.id <= s.accepted.id:
		return s.restarts + 1
	}
	return s.restarts
}

func (s *ids) kindOf(i ident) idsKind {
	if i.ours() {
		return idsOurs
	}
	return idsCount
}

func (s *ids) accept(k idsKind, i ident) bool {
	*s = ids{kind: k, accepted: i}
	return true
}
