package hca

// ids is what is known of a peer's IPv4 identifications and DF flag. The ICRC covers them, and a UDP
// socket does not tell them. Over IPv6, where neither is, it is what the flow labels tell, which the ICRC
// leaves out: whether the peer is an adverb.
//
// A damaged packet passes by chance with these probabilities. With a check of the whole ICRC the
// probability would be 2^-32.
//
//	a sender such as ourselves         2^-24   identifications below ownIDs or just above, with DF
//	any other                          2^-16   any identification, DF as before
//	  whose DF changes, a first packet 2^-15   any identification, with or without DF
//
// What order the identifications of others are in tells nothing that a receiver may rely on. Linux counts once
// for each pair of hosts, for all QPs and programs, and further with the time that passes. Others share one
// count among all they send, or jump. A packet that was dropped for its identification would be a good one, which
// is repeated at best.
//
// Nothing is learned from a packet until it has made progress: until it had the PSN that was waited
// for. So somebody who forges packets has to guess the PSN too, before genuine packets become implausible.
// Only misses changes before that. It lets more pass, never less.
type ids struct {
	kind     idsKind
	accepted ident // the latest of a packet that made progress
	restarts int   // of a count among ours; over IPv6 packets in a row with the label of an adverb
	misses   int   // those that did not fit since progress was made
}

type idsKind uint8

const (
	idsUnknown idsKind = iota // nothing has come
	idsOurs                   // as link.Link.Send has them, or wire.Flow.Label
	idsForeign                // in no order that we know, with one DF
	idsMixed                  // with DF and without
)

// ident is an identification with its DF flag, as SolveID finds it.
type ident struct {
	id uint16
	df bool
}

// ours reports whether i is the number of a segment, as link.Link.Send sets it. The receiver may see
// the segment at another place of a train than the sender.
func (i ident) ours() bool { return i.df && i.id < ownIDs }

// leaves reports whether i continues a count that was at o, where all before looked like ours. It is
// taken at once: on UC the packet would not come again.
func (i ident) leaves(o ident) bool { return i.df && i.id-o.id < ownIDs }

// judge judges a solved identification. If it fits the sender, judge returns what is known of the
// sender once the packet has made progress. A sender that is none of what it was taken for costs idMisses packets,
// which come again.
func (s *ids) judge(i ident) (next ids, ok bool) {
	switch {
	case s.kind == idsUnknown:
		return idsAs(kindOf(i), i), true
	case s.kind == idsOurs && i.ours():
		return s.ours(i), true
	case s.kind == idsOurs && i.df && (s.restarts == 0 || i.leaves(s.accepted)):
		return idsAs(idsForeign, i), true // what never began again may be a count that has only just passed 0
	case s.kind == idsMixed, s.kind == idsForeign && i.df == s.accepted.df:
		next = ids{kind: s.kind, accepted: i, restarts: s.restartsWith(i)}
		if next.restarts == idSteady {
			next = ids{kind: idsOurs, accepted: i, restarts: 1}
		}
		return next, true
	case s.misses < idMisses:
		s.misses++
		return *s, false
	case s.kind == idsForeign:
		return idsAs(idsMixed, i), true
	}
	return idsAs(idsForeign, i), true
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
	return idsForeign
}

func idsAs(k idsKind, i ident) ids { return ids{kind: k, accepted: i} }
