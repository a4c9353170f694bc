package hca

import "time"

// The limits of a device beside those of package limits.
const (
	maxAH            = 1 << 20
	maxMcastGrp      = 1 << 13 // groups with QPs
	maxMcastQPAttach = 1 << 12 // QPs of a group. There is no other bound on both together
	gidTableLen      = 256
	localACKDelay    = 15 // a code: 4.096 µs × 2^15 is 134 ms, as the kernel's software device says
)

const (
	// The number of a destroyed QP goes to no other QP for qpnRest, which is longer than a connection manager
	// takes to repeat a message that was lost.
	qpnRest = 3 * time.Second

	// QPs are spread over qpnSpread blocks of 4096 QPNs. Each block costs a socket where processes share
	// addresses.
	qpnSpread = 8

	// One call of Link.Recv takes up to receiveBatch datagrams.
	receiveBatch = 64

	// While receives bring datagrams, a timer waits for timerPatience of them at most.
	timerPatience = 64

	// One call of Link.Send is given up to sendBatch datagrams, and trainSpace bytes.
	sendBatch  = 64
	trainSpace = 64 << 10

	// A QP sends up to turnPackets packets that nothing on the wire paces, before others have their turn.
	// Nothing paces READ responses, and the packets of UC and UD.
	turnPackets = 128

	// While a program polls, each datagram would wake, for nothing, the goroutine that otherwise sleeps in
	// the link. So the goroutine naps for napTime. It goes on napping as long as each napTime brings
	// busyPolls polls, or busyAtWork polls and posts of which busyFinds find something: a program that has
	// much to do with each completion polls seldom. Each nap is then twice as long, up to napMost: the end of a
	// nap wakes threads, which take a core from the program or its peer. A timer cuts a nap short, but not
	// below shortNap: polls serve timers too.
	napTime    = 500 * time.Microsecond
	napMost    = 4 * napTime
	shortNap   = 50 * time.Microsecond
	busyPolls  = 50
	busyAtWork = 3
	busyFinds  = 1
	// After vainPolls empty polls in a row, a poll also serves the other engines of the process, and sends the
	// acknowledgements that wait there for a poll. Where programs poll on all processors, nobody else serves: Go
	// looks at its sockets once in 10 ms then. With one processor a single such program is enough, so there a
	// poll serves the others after vainPollsAlone.
	vainPolls      = 256
	vainPollsAlone = 4
	// The goroutine does not see polls that find completions of UC and UD. QPs tell it of busyUnseen such polls at
	// a time.
	busyUnseen = 16
	// fewPolls polls show that more polls will follow. A goroutine that is about to block polls only twice.
	fewPolls = 8
)
