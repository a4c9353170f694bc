package hca

import "time"

// What a device grants. Nothing is set aside for it: these are bounds against mistakes, in the
// region of what cards and the kernel's software device have.
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
	localACKDelay    = 15 // code: 4.096 µs × 2^15 is 134 ms, what the kernel's software device says
)

const (
	// qpnRest is for how long the number of a QP that was destroyed is not given to another: longer than a
	// connection manager takes to repeat a message that was lost. maxResting bounds how many wait for that.
	qpnRest    = 3 * time.Second
	maxResting = 4 * blockSize

	// receiveBatch is how many datagrams one call of Link.Recv takes.
	receiveBatch = 64

	// sendBatch is how many datagrams, and trainSpace how many bytes, one call of Link.Send is given.
	sendBatch  = 64
	trainSpace = 64 << 10

	// turnPackets is how many packets a QP sends that nothing on the wire paces, READ responses
	// and what UC and UD send, before others have their turn.
	turnPackets = 128

	// trainBytes bounds a train: it is one UDP payload until it is cut.
	trainBytes = 1<<16 - 1 - 40 - 8

	// While a program polls, the goroutine that otherwise sleeps in the link would be woken by each
	// datagram, for nothing. It naps instead for as long as at least busyPolls came in a nap.
	napTime   = 500 * time.Microsecond
	busyPolls = 50

	// idWindow is how far the IPv4 identification of a sender that counts may have moved
	// on between two of its datagrams to us.
	idWindow = 4096
	// idMisses is after how many datagrams in a row that do not fit any count a sender is
	// taken not to count, and idSteady after how many that do it is again taken to; and after how many
	// of its restarts one that counts is taken to be such as ourselves.
	idMisses = 2
	idSteady = 64
	// ownIDs is more than any adverb sends in a train.
	ownIDs = 128
)
