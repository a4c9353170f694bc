package transport

import (
	"math"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// What the specification fixes.
const (
	psnWindow     = 1 << 23 // PSNs that may be outstanding
	maxMessage    = 1 << 31 // bytes; for a request's RETH: IBTA C9-94
	retryForever  = 7       // rnr_retry without end
	atomicLength  = 8
	msnMask       = 1<<24 - 1
	maxPacketData = 4096 // the largest path MTU
)

// What this implementation chose.
const (
	// maxWindow is the most packets that a requester has unacknowledged. farWindow takes its place on long paths.
	// Responses to READs count. At an MTU of 4096 it is 1 MiB, which a receive buffer of 4 MiB holds several times. A
	// window that losses have halved still takes two chunks of a READ.
	maxWindow = 256
	// A path is long if its round trip is farTrip at least. The peer must repeat selectively. Beyond maxWindow the window
	// grows by farGrowth packets in a round trip, while that is about the shortest. The peer would not keep more than
	// maxHeld.
	farWindow = maxHeld
	farTrip   = time.Millisecond
	farGrowth = 32
	// firstWindow is the window of a new connection to a peer that goes back: a chunk of a READ.
	firstWindow = readChunk
	// lossWindow is the least that NAKs leave of the window, unless the path holds less. With fewer packets under
	// way a lost acknowledgement would more often be the only one, and cost a probe.
	lossWindow = 32
	// restartWindow is the window once a probe has shown that what followed it is lost.
	restartWindow = 2
	// maxHeld is how many packets a responder keeps that have come before others. What it need not keep,
	// since it could be placed, does not count.
	maxHeld = 512
	// A packet that is kept gets memory of its payload's size up to shortHeld bytes, and of a full packet's beyond.
	shortHeld = 512
	// A peer is told maxHellos times at most that we understand acknowledged ranges.
	maxHellos = 8
	// Every calmTrips round trips the patience with packets that are overtaken drops to what these have needed.
	calmTrips = 64
	// The latest maxSuspects packets that were taken for lost are remembered, so that we know them when they come twice.
	// A window has about as many of a bad path.
	maxSuspects = 64
	// leastProbe is the shortest silence that a probe follows. A peer's program may hold an acknowledgement back for a
	// nap, and hosts are busy elsewhere now and then. It is backProbe once a peer has made us go back: there are losses,
	// and the peer is none that naps.
	leastProbe = 4 * time.Millisecond
	backProbe  = time.Millisecond
	// How slow a peer was found to be counts for slowMemory, and for twice that at most.
	slowMemory = 10 * time.Second
	// While the round trip is unknown, a probe follows the acknowledge timeout divided by unknownProbe.
	unknownProbe = 4
	// After silentProbes probes without an answer the window begins again at its least.
	silentProbes = 2
	// narrowWindow is the least that single losses leave of the window.
	narrowWindow = 8
	// backWindow is the least that a path which holds little leaves of the window toward a peer that goes back. Each
	// loss repeats about as many packets.
	backWindow = 5
	// On a path that holds burstPath packets at most, such a peer may get bursts of burstWindow packets, if there are
	// burstGap packets from one loss to the next at the mean. A loss repeats half of a burst, and a little more. The window
	// grows meanwhile where losses are rare. When it is burstEnds, no further burst follows.
	burstPath   = 3
	burstWindow = 12
	burstGap    = 20
	burstEnds   = 4 * burstWindow
	// Bursts, or a window that slides, are judged after twice burstTrial losses, of which the later ones count, and
	// burstMemory at most. Of what a packet took with the other one part in burstForgets is forgotten with each loss, so
	// that it is tried again.
	burstTrial   = 4
	burstMemory  = 8
	burstForgets = 512
	// The time from one probe to the next doubles maxBackoff times at most.
	maxBackoff = 16
	// A round trip that exceeds the shortest by queueTime tells of a queue. Hosts are mostly late by less.
	queueTime = time.Millisecond
	// With a queue, losses narrow the window once in queueTrips round trips, and queueGrowth takes the place of growth.
	// With more of either CUBIC beside us gets less, and with less BBR gets more. Where the queue is longer than the
	// path, round trips are long as well, and CUBIC grows by the clock: there it is longTrips and longGrowth.
	queueTrips  = 42
	queueGrowth = 1
	longTrips   = 16
	longGrowth  = 2
	// unknownRoundTrip stands for the round trip until one is measured.
	unknownRoundTrip = time.Millisecond
	// After a loss that made us go back, the window stays within what the path holds for rareLoss packets. Where losses
	// are more frequent, each would repeat what only waits.
	rareLoss = 256
	// The window grows by growth packets in a round trip.
	growth = 8

	// Of a long message each window asks for ackParts acknowledgements, so that the window moves while the message is
	// under way.
	ackParts = 4

	// notifyInterval is the least time between two congestion notifications of a QP. DCQCN has the same.
	notifyInterval = 50 * time.Microsecond

	// What the pace allows in paceQuantum goes at once, up to trainBytes. Timers are not finer. A timer that is late by
	// paceSlack or less costs no rate.
	paceQuantum = 50 * time.Microsecond
	paceSlack   = time.Millisecond
	// A packet is longer on the wire by netHeaders bytes, which are IPv4's and UDP's.
	netHeaders = 28

	// A QP with several paths sends pathRun bytes by one before it chooses again: see paths.go. After pathIdleTrips round
	// trips without a packet a path is idle, and a packet tries it. A path that was left is tried after pathPauseTrips
	// round trips. If it is left again before pathTrust packets have come by it, the pause doubles, up to pathPauseMost.
	pathRun        = 32 << 10
	pathIdleTrips  = 16
	pathPauseTrips = 8
	pathPauseMost  = 100 * time.Millisecond
	pathTrust      = 1024
	// The loss of a path is an average over pathMemory packets, as a part of lossScale. pathLossLimit is too much, if
	// another path has half of that. An answer that the peer seems to have missed counts as pathAnswer packets.
	pathMemory    = 64
	pathAnswer    = 9
	lossScale     = 1024
	pathLossLimit = lossScale / 8
	// A path gets less than others if its packets take pathLate times as long as usual, and pathNoise more. What it gets
	// changes by pathGrowth and pathShrink at most at a time, and pathLeastShare is the least.
	pathLate       = 1.25
	pathNoise      = 20 * time.Microsecond
	pathGrowth     = 1.25
	pathShrink     = 0.5
	pathLeastShare = 1.0 / 64
	// Of a path's latest trip one part in pathTripPart counts.
	pathTripPart = 4

	// An acknowledgement that was deferred leaves behind deferBehind packets of SENDs at the latest: a train.
	deferBehind = 8

	// An answer carries an acknowledgement if both together are carrierMost bytes at most. Longer ones gain little. Nor
	// are they longer than the path MTU, so that they fit wherever a full packet does. A payload that was folded while it
	// was copied has 1024 bytes at least, and must end its datagram: see wire.Fold.
	carrierMost = 1024

	// What is posted waits for more while at least holdFrom packets of holdMessages messages are on their way, until it
	// is as much as those, holdMost packets, or a train, which has trainBytes.
	holdFrom     = 16
	holdMessages = 8
	holdMost     = 64
	trainBytes   = 60 << 10

	// While restFrom packets are on their way, what remains behind a whole train waits.
	restFrom = 48

	// DatagramBytes bounds a train: it is one UDP payload until it is cut.
	DatagramBytes = 1<<16 - 1 - 40 - 8

	// Messages of UC and UD of up to shortMessage bytes wait for company.
	shortMessage = 512

	// SENDs of up to FastMost bytes take the fast path.
	FastMost = lendLeast - 1

	// After fastPatience without progress, recovery takes over from the fast path.
	fastPatience = 5 * time.Millisecond

	// A packet whose payload is lent stands for lendMost bytes at most. The peer copies one while the next is on its way.
	lendMost = 64 << 10

	// Payloads of lendLeast bytes and more are lent. Where cores are near each other, that costs as much as copying some
	// two KiB. Where they are far, each line that is copied through the lane takes as long as a far cache does, and
	// lending makes 1 KiB three times as fast.
	lendLeast = 1 << 10

	// While others are on their way, a WRITE of up to apartMost bytes goes as so many WRITEs as it has packets.
	apartMost = 64 << 10

	// One READ request asks for readChunk response packets at most. No acknowledgements hold back who sends responses,
	// so a long READ is several requests.
	readChunk = maxWindow / 4

	// The period of a keep-alive has aliveBeats instants at which it may ask. So it is early by that part at most.
	aliveBeats = 64

	// maxKeepAlive is the longest period of a keep-alive, so that no time overflows.
	maxKeepAlive = 365 * 24 * time.Hour

	// maxReplays bounds how many repeated READs and atomics wait to be answered again, beside
	// the max_dest_rd_atomic new ones.
	maxReplays = 16
)

// maxAhead is the most sequence numbers that are outstanding, from the first that is missing on. The window counts only
// what is on its way.
const maxAhead = wire.MaxRanges

// A negative length would not compile: the window keeps clear of the PSNs' own limit.
var _ [psnWindow - maxAhead]struct{}

// Never is the time of a timeout that is not set.
const Never = time.Duration(math.MaxInt64)

// MaxDatagram is the space that Transmit needs: the longest datagram of a QP.
const MaxDatagram = wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + maxPacketData + wire.ICRCSize
