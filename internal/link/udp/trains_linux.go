//go:build !adverb_portable

package udp

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxTrain is the longest train that all kernels take which take trains at all.
const maxTrain = 64

// After trains have failed, a link sends none for pauseMin. If they fail again soon after, the pause grows by
// pauseGrowth, up to pauseMax: each attempt costs most of a train. Flow labels have such pauses too, since their
// attempts cost a system call.
const (
	pauseMin    = time.Second
	pauseMax    = 5 * time.Minute
	pauseGrowth = 4
)

// A pauser says whether a link sends trains, or flow labels.
type pauser struct {
	on atomic.Bool

	mu      sync.Mutex
	closed  bool
	pause   time.Duration // the latest
	resumed time.Time     // when the pause ended
	timer   *time.Timer
}

// suspend switches the feature off for a while.
func (s *pauser) suspend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !s.on.Load() {
		return
	}
	s.on.Store(false)
	if s.pause > 0 && time.Since(s.resumed) < s.pause {
		s.pause = min(pauseGrowth*s.pause, pauseMax)
	} else {
		s.pause = pauseMin
	}
	s.timer = time.AfterFunc(s.pause, s.resume)
}

// resume ends a suspension.
func (s *pauser) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.resumed = time.Now()
		s.on.Store(true)
	}
}

func (s *pauser) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// mayEndTrains reports whether an error may mean that this path, or this kernel, takes no trains.
// The error is EIO where an interface computes no checksums. EINVAL has been seen from Linux 5.15
// and 6.1 over IPv6. But on a blackhole route every datagram gets EINVAL.
func mayEndTrains(errno syscall.Errno) bool {
	return errno == unix.EIO || errno == unix.EINVAL || errno == unix.EOPNOTSUPP
}
