package cm

import (
	"math"
	"time"
)

// Never is later than any timeout.
const Never = time.Duration(math.MaxInt64)

// What the specification fixes.
const (
	maxTimeoutCode = 31 // timeouts have 5 bits
	maxCMRetries   = 15 // 4 bits
	maxQPRetries   = 7  // 3 bits, also for RNR retries
	minMTU, maxMTU = 1, 5
	max24          = 1<<24 - 1 // QPNs and PSNs have 24 bits

	pkeyBaseMask  = 0x7fff // a P_Key without its membership bit
	permissiveLID = 0xffff // the LID of a port that has none

	guidSize = 8 // in the ARI of a REJ with reason timeout
)

// What a peer sees unless the caller wants something else.
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

// What this implementation has chosen. The bounds on times keep a peer that names long ones from
// holding records.
const (
	maxBacklog  = 1024    // unanswered requests of one listener
	maxRequests = 4096    // unanswered requests of all listeners
	maxRetired  = 8192    // records that are kept only for what the peer may still send
	maxQueue    = 4096    // MADs that wait for Transmit
	maxConns    = 1 << 19 // so that a free communication ID is found soon

	maxResponseCode = 22 // a REP or DREQ is repeated after at most 16 s
	maxServiceCode  = 26 // an MRA delays by at most 4 minutes
	maxTimeWaitCode = 23 // time-wait takes at most 33 s

	maxLinger  = 150 * time.Second // for so long a repeated REQ is answered by the REJ again
	sidrLinger = 10 * time.Second  // for so long a repeated SIDR_REQ is answered by the SIDR_REP again

	// maxProbes is how many DREQs follow a REJ that the peer may have missed.
	maxProbes = 8
)
