// Package watch lets the user look into programs that have devices open: "adverb stat" and "adverb res".
//
// A program with an open device listens on an abstract unix socket, named after its user and its process
// ID. Whoever connects sends a line that says what it wants, and gets a [Process] as JSON. The kernel
// tells both ends who the other is: a program answers its own user and root, and the one who asks
// believes programs of its own user, and root all whom it can tell from others (package user).
//
// Neither end can be held up by the other: each conversation has a deadline, an answer a size, and few
// conversations run at a time. Nor can strangers hide programs by names like theirs: whose a socket is
// comes first. What could not be asked in time is told. What a program says of itself is text of its own choice, so the one who
// prints it removes what a terminal would obey ([Clean]).
//
// Without abstract unix sockets, which is everywhere but on Linux, nobody listens.
package watch

import (
	"errors"
	"time"
)

// EnvOff names the environment variable that, set to 0, keeps a program from listening.
const EnvOff = "ADVERB_WATCH"

// Want is what is asked for.
type Want string

const (
	WantStat   Want = "stat"    // the counters of devices and ports
	WantQPStat Want = "stat qp" // and those of QPs
	WantRes    Want = "res"     // what is open
)

func (w Want) valid() bool { return w == WantStat || w == WantQPStat || w == WantRes }

// ErrUnsupported is the error of asking on a system where programs cannot listen.
var ErrUnsupported = errors.New("ask the programs of this host: that needs Linux's abstract unix sockets")

// What this implementation chose.
const (
	// socketDir begins the names of the sockets. The user's ID and the process's follow.
	socketDir = "@adverb/watch/"

	answerTime    = time.Second     // for a conversation, at both ends
	maxAnswer     = 32 << 20        // bytes
	maxRequest    = 64              // bytes
	conversations = 4               // that a program has at a time; further ones are turned away
	askAtOnce     = 64              // programs that are asked at a time
	askOfUser     = 16              // programs of a user that are asked at a time
	listTime      = 2 * time.Second // for the list of the host's sockets
	askTime       = 9 * time.Second // until the last question, the list included
	toldOfUser    = 8               // programs of a user of which the asker hears each why it did not answer
	told          = 64              // words about what is missing in the answers
	maxObjects    = 10_000          // objects of a kind that a device lists; the rest is counted
	maxQPCounters = 2_000           // QPs whose counters a device lists
)
