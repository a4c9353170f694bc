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
	maxQPRetries   = 7  // 3 bits, RNR retries too
	minMTU, maxMTU = 1, 5
	wire24         = 1<<24 - 1 // QPNs and PSNs have 24 bits

	defaultPKey  = 0xffff
	pkeyBaseMask = 0x7fff // a P_Key without its membership bit
	permissive   = 0xffff // the LID of a port that has none

	guidSize = 8 // in the ARI of a REJ with reason timeout
)

// What a peer sees unless the caller wants something else.
const (
	// DefaultPacketLifetime is the code of a RoCE path's packet lifetime, as recent Linux has it: 268 ms.
	DefaultPacketLifetime = 16

	// DefaultCMTimeout is the code of the CM response timeouts: 1.07 s. Linux has 20.
	DefaultCMTimeout = 18

	DefaultCMRetries = 15

	// DefaultServiceTimeout is the code that a repeated REQ or REP is told to wait for the user:
	// 69 s, as Linux does it.
	DefaultServiceTimeout = 24

	pathHopLimit = 64
)

// What this implementation chose. The caps keep a peer that names long times from holding records.
const (
	maxBacklog  = 1024    // unanswered requests of one listener
	maxRequests = 4096    // and of all
	maxRetired  = 8192    // records kept only for what the peer may still send
	maxQueue    = 4096    // MADs that wait for Transmit
	maxConns    = 1 << 19 // so that free communication IDs are found soon

	maxResponseCode = 22 // a REP or DREQ is repeated after at most 16 s
	maxServiceCode  = 26 // an MRA delays by at most 4 minutes
	maxTimeWaitCode = 23 // time-wait takes at most 33 s

	maxLinger  = 150 * time.Second // for which a REJ is repeated to a repeated REQ
	sidrLinger = 10 * time.Second  // for which a SIDR_REP is

	// maxProbes is how often a DREQ follows up a REJ that the peer may have missed.
	maxProbes = 8
)
