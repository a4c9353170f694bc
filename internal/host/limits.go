package host

import "time"

// How QPNs are cut up. Package hca draws QPNs from the same blocks.
const (
	blockBits = 12
	numBlocks = 1 << (24 - blockBits)

	// specialBlock contains QP0, which no process has, and QP1, which all processes share.
	specialBlock = 0

	// controlBlock contains the multicast QPN, which is its last. The others stand for the sockets
	// of an address: a datagram to one of them asks which process is behind that socket.
	controlBlock = numBlocks - 1
)

// Messages that are held for another process. They wait until the process has room in its mailbox, and
// has proved that it is of the same user.
const (
	heldPerOwner = 2048 // messages for one process
	maxHeld      = 4096 // messages for all processes

	// Messages for a process that gives no sign of life are held for holdTime.
	holdTime = time.Second

	// Attempts to send held messages are retryMin to retryMax apart.
	retryMin = time.Millisecond
	retryMax = 16 * time.Millisecond
)

// Looking for other processes. A flood from the network may contain any number of made-up QPNs and
// service IDs. They must not cost a system call each.
const (
	// maxOutlets is the number of open sockets to other processes, of all devices together. Some of
	// those processes may have ended. A socket that is not used for outletIdle to twice that is closed.
	// They take one part in outletPart of the descriptors that the process may have at most.
	maxOutlets = 64
	outletPart = 16
	outletIdle = 5 * time.Second

	// A block without an owner is not looked up again for absentTime.
	absentTime = 20 * time.Millisecond

	// In each absentTime, maxLookups blocks and as many services are looked up, and maxCancels
	// messages are given to every process.
	maxLookups = 64
	maxCancels = 16

	// Strangers may open many unix sockets on the host, and to list the sockets takes time. So between two
	// lists there is a pause, listShare times as long as the first list took.
	listShare = 50
)

// Surveys, which find out the process behind each socket of an address by probes.
const (
	// The processes have probeTime to answer.
	probeTime = 100 * time.Millisecond

	// probeAgain is the time until sockets that have not answered are probed again. It doubles each
	// time.
	probeAgain = 10 * time.Millisecond

	// The first survey looks for firstProbes sockets, and any survey for maxProbes at most.
	firstProbes = 16
	maxProbes   = 1024

	// Up to probeWindow answers may be outstanding. The answers have to fit into a mailbox.
	probeWindow = 8
)

// Renewals of the program.
const (
	// Renewals are at least renewMin apart. The pause grows up to renewMax while renewals find
	// nothing new.
	renewMin = 10 * time.Millisecond
	renewMax = 2 * time.Second

	// checkTime is the time after which the program is checked although nothing strays, unless
	// another process has just done so. checkTime and probeTime together are less than the half
	// second or so for which a connection with default retries tries.
	checkTime = 250 * time.Millisecond
)

// Receiving.
const (
	// Up to injectedDatagrams datagrams that others have passed on wait for Recv.
	injectedDatagrams = 4096

	// One Recv reads up to strayBatches batches if they contain nothing for this process. Recv does not read
	// on for ever, because its caller has timers to serve too.
	strayBatches = 4

	// A process that leaves an address reads up to leaveBatches batches of datagrams for others, and waits
	// leaveTime at most until the others have taken the datagrams.
	leaveBatches = 64
	leaveTime    = 250 * time.Millisecond

	// maxDatagram is the longest datagram that is passed on, in bytes. All of RoCEv2's are shorter.
	maxDatagram = 4608
)
