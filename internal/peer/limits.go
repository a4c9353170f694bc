package peer

import "time"

const (
	// When a packet comes from another port than the peer's, and no peer could have sent it now, the
	// peer cannot move to another port for MoveBan. Guessing a PSN takes years then.
	MoveBan = 10 * time.Second
	// A UC peer that is silent on its port for UCMoveTime, and sends from another port, has moved with the loss
	// of many packets.
	UCMoveTime = 10 * time.Second
	// A peer that has moved more than MaxMoves times may use any port. Each move costs the peer a repeat.
	MaxMoves = 4

	// A peer is taken for another kind of sender when more than maxMisses packets in a row do not fit its kind,
	// and for an adverb when its identifications have begun again steadyRestarts times in an adverb's range.
	maxMisses      = 2
	steadyRestarts = 64
	// A peer is surely an adverb when its identifications have begun again SureRestarts times in an adverb's range
	// or, over IPv6, when SureRestarts packets in a row had the flow label of an adverb.
	SureRestarts = 8
	// maxTrain is more segments than any adverb sends in a train.
	maxTrain = 128
)
