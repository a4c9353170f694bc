package soft

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/queue"
)

var began = time.Now()

// yielder is that of all devices of the process: they share its cores.
var yielder = queue.NewYielder(func() time.Duration { return time.Since(began) }, func() { unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0) })
