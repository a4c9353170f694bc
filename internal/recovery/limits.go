package recovery

import (
	"math"
	"time"
)

// Never is the time of a timeout that is not set.
const Never = time.Duration(math.MaxInt64)

const (
	// MaxWindow is the most packets in flight of a requester. FarWindow takes its place on long paths. Responses to READs
	// count. At an MTU of 4096 it is 1 MiB, which a receive buffer of 4 MiB holds several times. A window that losses
	// have halved still takes two chunks of a READ.
	MaxWindow = 256
	// A path is long if its RTT is farRTT at least. The peer must acknowledge selectively. Beyond MaxWindow the window grows
	// by farGrowth packets in a round trip, while the RTT is about the shortest. Such a peer keeps
	// FarWindow packets that came before others.
	FarWindow = 512
	farRTT    = time.Millisecond
	farGrowth = 32
	// FirstWindow is the window of a new connection to a peer that goes back: a chunk of a READ.
	FirstWindow = 64
	// MaxAhead is the most sequence numbers that are outstanding, from the first missing one on. The window counts packets
	// in flight only.
	MaxAhead = 1024
	// LossWindow is the least that NAKs leave of the window, unless the path holds less. With fewer packets in flight a
	// lost acknowledgement would more often be the only one, and cost a probe.
	LossWindow = 32
	// RestartWindow is the window once a probe has shown that the packets behind it are lost.
	RestartWindow = 2
	// narrowWindow is the least that single losses leave of the window.
	narrowWindow = 8
	// backWindow is the least that a path which holds little leaves of the window toward a peer that goes back. Each loss
	// repeats about as many packets.
	backWindow = 5
	// The window grows by growth packets in a round trip.
	growth = 8
	// After a loss that made us go back, the window stays within the BDP for rareLoss packets. Where losses
	// are more frequent, each would repeat packets that only wait.
	rareLoss = 256

	// On a path that holds burstPath packets at most, a peer that goes back may get bursts of BurstWindow packets, if there
	// are burstGap packets from one loss to the next at the mean. A loss repeats half of a burst, and a little more. The
	// window grows meanwhile where losses are rare. When it is BurstEnds, no further burst follows.
	burstPath   = 3
	BurstWindow = 12
	burstGap    = 20
	BurstEnds   = 4 * BurstWindow
	// Bursts, or a window that slides, are judged after twice burstTrial losses, of which the later ones count, and
	// burstMemory at most. Of the time of a packet with the other one, one part in burstForgets is forgotten with each
	// loss, so that the other one is tried again.
	burstTrial   = 4
	burstMemory  = 8
	burstForgets = 512

	// Every ReorderDecay round trips the reorder window becomes as long as packets have needed.
	ReorderDecay = 64
	// The latest maxDeclared ranges that were declared lost are remembered, so that spurious losses show. A window of a
	// bad path has about as many.
	maxDeclared = 64

	// MinPTO is the shortest probe timeout. A peer's program may hold an acknowledgement back for a nap, and hosts are busy
	// elsewhere now and then. It is goBackPTO once a peer has made us go back: there are losses, and such a peer takes no
	// naps.
	MinPTO    = 4 * time.Millisecond
	goBackPTO = time.Millisecond
	// The longest delay of a peer's answers counts for delayMemory, and for twice that at most. It is delayMost at most.
	delayMemory = 10 * time.Second
	delayMost   = 200 * time.Millisecond
	// While the RTT is unknown, a probe follows the acknowledge timeout divided by unknownPTO.
	unknownPTO = 4
	// After persistentPTOs probes without an answer the window begins again at its least.
	persistentPTOs = 2
	// The PTO doubles maxBackoff times at most.
	maxBackoff = 16
	// unknownRTT stands for the RTT until one is measured.
	unknownRTT = time.Millisecond

	// An RTT that exceeds the shortest by queueTime tells of a queue. Hosts are mostly late by less.
	queueTime = time.Millisecond
	// With a queue, losses narrow the window once in queueTrips round trips, and queueGrowth takes the place of growth.
	// With more of either CUBIC beside us gets less, and with less BBR gets more. Where the queue is longer than the
	// path, RTTs are long as well, and CUBIC grows by the clock: there it is longTrips and longGrowth.
	queueTrips  = 42
	queueGrowth = 1
	longTrips   = 16
	longGrowth  = 2

	// NotifyInterval is the least time between two congestion notifications of a QP. DCQCN has the same.
	NotifyInterval = 50 * time.Microsecond

	// The packets that the pace allows in paceQuantum go at once, up to TrainBytes. Timers are not finer. A timer that is
	// late by paceSlack or less costs no rate.
	paceQuantum = 50 * time.Microsecond
	paceSlack   = time.Millisecond
	// TrainBytes bounds the packets that leave in one system call.
	TrainBytes = 60 << 10

	// A QP with several paths sends pathRun bytes by one before it chooses again: see Paths. After pathIdleTrips round
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
	// A path gets less than others if its packets take pathLate times as long as usual, and pathNoise more. Its share
	// changes by pathGrowth and pathShrink at most at a time, and pathLeastShare is the least.
	pathLate       = 1.25
	pathNoise      = 20 * time.Microsecond
	pathGrowth     = 1.25
	pathShrink     = 0.5
	pathLeastShare = 1.0 / 64
	// Of a path's latest RTT one part in pathRTTPart counts.
	pathRTTPart = 4
)
