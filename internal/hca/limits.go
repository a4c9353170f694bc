package hca

import "time"

// What a device grants beside package limits.
const (
	maxAH            = 1 << 20
	maxMcastGrp      = 1 << 13
	maxMcastQPAttach = 1 << 12
	gidTableLen      = 256
	localACKDelay    = 15 // a code: 4.096 µs × 2^15 is 134 ms, as the kernel's software device says
)

const (
	// qpnRest is for how long the number of a destroyed QP is not given to another: longer than a
	// connection manager takes to repeat a message that was lost.
	qpnRest = 3 * time.Second

	// qpnSpread is over how many blocks of 4096 QPNs a device spreads its QPs. Each costs a socket where
	// processes share addresses.
	qpnSpread = 8

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
	// link, for nothing. So the goroutine naps for napTime, and goes on napping as long as in each napTime
	// busyPolls polls come, or busyAtWork polls and posts of which busyFinds find something: a program that has much
	// to do with what it finds polls seldom. Each nap is then twice as long, up to napMost: its end wakes threads,
	// which take a core from the program or its peer. For timers a nap is cut, but not below shortNap: polls
	// serve them too.
	napTime    = 500 * time.Microsecond
	napMost    = 4 * napTime
	shortNap   = 50 * time.Microsecond
	busyPolls  = 50
	busyAtWork = 3
	busyFinds  = 1
	// vainPolls is after how many polls that find nothing one looks at what waits for polls elsewhere in the process.
	vainPolls = 256
	// busyUnseen is of how many polls at a time the goroutine is told that found completions of UC and UD.
	busyUnseen = 16
	// fewPolls is how many polls show that the one which receives now is not the last for long. A
	// goroutine that blocks polls twice before.
	fewPolls = 8

	// When a packet comes from another port than its peer's, and no peer could have sent it now, the
	// QP's peer cannot move to another port for portsClosed. Guessing a PSN takes years then.
	portsClosed = 10 * time.Second
	// ucMoveTime is for how long a UC peer must be silent on its port, and send from another, to have moved
	// with the loss of many packets.
	ucMoveTime = 10 * time.Second
	// maxMoves is how often a peer moves to another port before it may use any. Each move costs it a
	// repeat.
	maxMoves = 4

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
	// sureRestarts is how often the count of a sender must have begun again in the range of ours before
	// it is told that we are one like it, and how many packets in a row must have the flow label of one.
	sureRestarts = 8
	// ownIDs is more segments than any adverb sends in a train.
	ownIDs = 128
)
