package hca

import "time"

// What a device grants. Nothing is set aside for it. These are bounds against mistakes, of the order
// of what cards and the kernel's software device have.
const (
	maxQP            = 1 << 20
	maxQPWR          = 1 << 15
	maxSGE           = 32
	maxInline        = 1024
	maxCQ            = 1 << 20
	maxCQE           = 1<<22 - 1
	maxMR            = 1 << 19
	maxPD            = 1 << 20
	maxSRQ           = 1 << 16
	maxSRQWR         = 1 << 15
	maxAH            = 1 << 20
	maxMcastGrp      = 1 << 13
	maxRDAtomic      = 128
	maxMRSize        = 1<<64 - 1
	maxMessageSize   = 1 << 31
	gidTableLen      = 256
	maxMcastQPAttach = 1 << 12
	localACKDelay    = 15 // a code: 4.096 µs × 2^15 is 134 ms, as the kernel's software device says
)

const (
	// qpnRest is for how long the number of a destroyed QP is not given to another: longer than a
	// connection manager takes to repeat a message that was lost.
	qpnRest = 3 * time.Second

	// receiveBatch is how many datagrams one call of Link.Recv takes.
	receiveBatch = 64

	// timerPatience is for how many receives that bring datagrams a timer waits at most.
	timerPatience = 64

	// sendBatch is how many datagrams, and trainSpace how many bytes, one call of Link.Send is given.
	sendBatch  = 64
	trainSpace = 64 << 10

	// turnPackets is how many packets that nothing on the wire paces a QP sends before others have
	// their turn. Such are READ responses, and what UC and UD send.
	turnPackets = 128

	// trainBytes bounds a train: it is one UDP payload until it is cut.
	trainBytes = 1<<16 - 1 - 40 - 8

	// While a program polls, each datagram would wake the goroutine that otherwise sleeps in the
	// link, for nothing. So the goroutine naps for napTime, and goes on napping as long as busyPolls
	// polls or more come in each nap.
	napTime   = 500 * time.Microsecond
	busyPolls = 50

	// idWindow is by how much the IPv4 identification of a sender that counts may differ between two
	// of its datagrams to us.
	idWindow = 4096
	// idSilence is the time after which the identification of a sender that counts may be any. A
	// sender of 2^18 packets a second has counted once around by then.
	idSilence = 250 * time.Millisecond
	// maxSenders is how many senders an engine remembers for QPs that are connected later.
	maxSenders = 4096
	// A sender is taken for one that does not count when more than idMisses datagrams in a row do
	// not fit a count. It is taken for one that counts when idSteady datagrams in a row fit again.
	// A sender that counts is taken for an adverb when its count has begun again idSteady times.
	idMisses = 2
	idSteady = 64
	// ownIDs is more segments than any adverb sends in a train.
	ownIDs = 128
)
