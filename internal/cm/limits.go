package cm

import (
	"math"
	"time"
)

// Never is later than any timeout.
const Never = time.Duration(math.MaxInt64)

// Values that the specification fixes.
const (
	maxTimeoutCode = 31 // timeouts have 5 bits
	maxCMRetries   = 15 // 4 bits
	maxQPRetries   = 7  // 3 bits, also for RNR retries
	minMTU, maxMTU = 1, 5
	max24          = 1<<24 - 1 // QPNs and PSNs have 24 bits

	permissiveLID = 0xffff // the LID of a port that has none

	noQPN = 0 // QP0 has no connections

	guidSize = 8 // in the ARI of a REJ with reason timeout
)

// Defaults for the fields of messages.
const (
	// DefaultPacketLifetime is the code of a RoCE path's packet lifetime, as in recent Linux: 268 ms.
	DefaultPacketLifetime = 16

	// DefaultCMTimeout is the code of the CM response timeouts: 1.07 s. Linux has 20.
	DefaultCMTimeout = 18

	DefaultCMRetries = 15

	// DefaultServiceTimeout is the code of the time that a peer is told to wait for the user when it
	// repeats a REQ or REP: 69 s, as in Linux.
	DefaultServiceTimeout = 24

	pathHopLimit = 64
)

// Values that this implementation has chosen. The bounds on times keep a peer that names long ones
// from holding records.
const (
	maxBacklog = 1024 // unanswered requests of one listener

	// maxAttempts bounds the attempts of peers: unanswered requests of all listeners, and half-open
	// connections, which were accepted and hold a QP. One source may have maxAttemptsOfSource of them.
	maxAttempts         = 2048
	maxAttemptsOfSource = 1024

	maxRetired = 8192    // records that are kept only for late messages of their peers
	maxQueue   = 4096    // MADs that wait for Transmit
	maxConns   = 1 << 19 // so that a free communication ID is found soon

	maxResponseCode = 22 // a REP or DREQ is repeated after at most 16 s
	maxServiceCode  = 26 // an MRA delays by at most 4 minutes
	maxTimeWaitCode = 23 // time-wait takes at most 33 s, and an MRA delays by at most as much beside its own time
	maxLifetimeCode = 21 // the way to the peer and back takes at most 16 s of the time after which a REQ is repeated

	// MaxAnswerTime bounds the wait of a REP or DREQ for its answer, all repetitions and MRAs included.
	// With Linux's own numbers the wait comes to 69 s.
	MaxAnswerTime = 3 * time.Minute

	// MRAs prolong the wait for a REP by maxPatience at most. Linux, which asks for 69 s each time that the
	// REQ comes again, gets those 69 s.
	maxPatience = 20 * time.Minute

	// A peer that may have restarted is asked doubtRepeats times, doubtInterval apart, whether it has a
	// connection still, and asked anew after doubtPause.
	doubtRepeats  = 3
	doubtInterval = time.Second
	doubtPause    = 5 * time.Second

	// A request that nobody has answered is forgotten when it should have come again silentRepeats
	// times and did not. Of a peer's own times maxRepeatTime counts at most.
	silentRepeats = 3
	maxRepeatTime = time.Minute
	sidrSilence   = 3 * time.Minute

	// A repeated REQ is answered by the REJ again for maxLinger, and a repeated SIDR_REQ by the SIDR_REP again
	// for sidrLinger.
	maxLinger  = 150 * time.Second
	sidrLinger = 10 * time.Second

	// A DREQ is repeated after earlyDREQ, after twice as long, and so on up to the peer's response timeout: the peer's
	// device answers by itself, and what the peer has under way fails for want of acknowledgements after a second or so.
	earlyDREQ = 50 * time.Millisecond

	// Up to maxProbes DREQs follow a REJ that the peer may have missed.
	maxProbes = 8
)
