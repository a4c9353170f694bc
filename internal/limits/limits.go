// Package limits holds the limits of the software devices, such as the number of QPs and the size of messages.
// They are the same whatever carries the data. Nothing is set aside for them: they are bounds against mistakes,
// about as large as those of cards and of the kernel's software device.
package limits

import (
	"math"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// Limits of a device.
const (
	MaxQP          = 1 << 20
	MaxQPWR        = 1 << 15
	MaxSGE         = 32
	MaxInline      = 1024
	MaxCQ          = 1 << 20
	MaxCQE         = 1<<22 - 1
	MaxMR          = 1 << 19
	MaxPD          = 1 << 20
	MaxSRQ         = 1 << 16
	MaxSRQWR       = 1 << 15
	MaxXRCD        = 1 << 16
	MaxRDAtomic    = 128
	MaxMRSize      = 1<<64 - 1
	MaxMessageSize = 1 << 31
)

// odpCaps says that all may be done with memory that is not pinned: no memory is.
var odpCaps = verbs.ODPCaps{
	General: verbs.ODPSupport,
	RC:      verbs.ODPSend | verbs.ODPRecv | verbs.ODPWrite | verbs.ODPRead | verbs.ODPAtomic | verbs.ODPSRQRecv,
	UC:      verbs.ODPSend | verbs.ODPRecv | verbs.ODPWrite | verbs.ODPSRQRecv,
	UD:      verbs.ODPSend | verbs.ODPRecv | verbs.ODPSRQRecv,
}

// Attr returns what the devices have in common. A device adds its GUIDs, capabilities and guarantees.
func Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		FWVer:           "0.0.0",
		VendorID:        0xffffff, // none assigned, as for the kernel's software device
		MaxMRSize:       MaxMRSize,
		PageSizeCap:     0xfffff000,
		MaxQP:           MaxQP,
		MaxQPWR:         MaxQPWR,
		MaxSGE:          MaxSGE,
		MaxSGERd:        MaxSGE,
		MaxCQ:           MaxCQ,
		MaxCQE:          MaxCQE,
		MaxMR:           MaxMR,
		MaxPD:           MaxPD,
		MaxQPRdAtom:     MaxRDAtomic,
		MaxResRdAtom:    MaxRDAtomic * MaxQP,
		MaxQPInitRdAtom: MaxRDAtomic,
		AtomicCap:       verbs.AtomicGlob,
		MaxMW:           MaxMR,
		MaxSRQ:          MaxSRQ,
		MaxSRQWR:        MaxSRQWR,
		MaxSRQSGE:       MaxSGE,
		PhysPortCnt:     1,
		MaxInline:       MaxInline,
		NumCompVectors:  1,
		TimestampMask:   math.MaxInt64,
		HCACoreClock:    1e6, // completions are stamped in nanoseconds
		ODPCaps:         odpCaps,
		UnsharedMemory:  mem.Unshared(),
	}
}

// Take counts one more of what a device grants, unless it has granted as many as it may.
func Take(n *atomic.Int64, limit int64) bool {
	if n.Add(1) > limit {
		n.Add(-1)
		return false
	}
	return true
}
