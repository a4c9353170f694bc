//go:build !linux

package soft

import "github.com/adverb-rdma/adverb/internal/queue"

// yielder is none: Go has no way to give a core away here.
var yielder *queue.Yielder
