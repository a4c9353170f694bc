package host

import "time"

// How QPNs are cut up. Package hca draws numbers by the same blocks.
const (
	blockBits = 12
	numBlocks = 1 << (24 - blockBits)

	// specialBlock holds QP0, which nobody has, and QP1, which all processes share.
	specialBlock = 0
	// controlBlock holds the multicast QPN, its last, and numbers that stand for the sockets of
	// an address: datagrams to them find out who is behind each.
	controlBlock = numBlocks - 1
)

const (
	// heldPerOwner bounds what is kept for a process that has no room in its mailbox, or has not
	// proved yet who it is, and maxHeld what is kept for all. It is dropped after holdTime without
	// a sign of life. Between tries are retryMin to retryMax.
	heldPerOwner = 2048
	maxHeld      = 4096
	holdTime     = time.Second
	retryMin     = time.Millisecond
	retryMax     = 16 * time.Millisecond

	// maxOutlets bounds the sockets to other processes, of which many may have ended meanwhile.
	maxOutlets = 64

	// absentTime is for how long a block that nobody owns is not asked for again, and maxLookups
	// how many blocks, and how many services, are asked for in that time: numbers made up by a flood from the
	// network must not cost a system call each.
	absentTime = 20 * time.Millisecond
	maxLookups = 64

	// maxCancels is how many messages are given to every process in that time.
	maxCancels = 16

	// probeTime is how long the processes of an address have to answer who they are, and
	// firstProbes how many sockets are looked for at first, of which probeWindow at a time: their answers
	// have to fit into a mailbox. Those that have not answered are asked again
	// after probeAgain, and after twice as long each time.
	probeTime   = 100 * time.Millisecond
	probeAgain  = 10 * time.Millisecond
	firstProbes = 16
	probeWindow = 8
	maxProbes   = 1024

	// Renewals of the program are apart by at least renewMin, and by more the more of them
	// in a row have failed to find all processes, renewMax at most.
	renewMin = 10 * time.Millisecond
	renewMax = 2 * time.Second

	// checkTime is after how long without a renewal by anybody one takes place although nothing strays. With
	// probeTime it is below the half second or so that a connection tries with default retries.
	checkTime = 250 * time.Millisecond

	// injectedDatagrams bounds what others have passed on and is not received yet.
	injectedDatagrams = 4096

	// strayBatches is how many batches in a row one Recv reads that hold nothing for this process:
	// whoever receives has timers to serve too.
	strayBatches = 4

	// maxDatagram is the longest datagram that is passed on: longer than any of RoCEv2.
	maxDatagram = 4608
)
