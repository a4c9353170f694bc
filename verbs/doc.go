// Package verbs is the RDMA verbs API: devices, protection domains (PD), memory regions (MR),
// completion queues (CQ) and queue pairs (QP), with the semantics of libibverbs.
//
// The package is the contract only. Devices come from providers, which register themselves
// when they are imported, as database/sql's drivers do:
//
//	import (
//		"github.com/adverb-rdma/adverb/verbs"
//		_ "github.com/adverb-rdma/adverb/provider/soft" // software RoCEv2 devices
//	)
//
// A program opens a [Device], allocates a [PD], registers memory with it, creates a [CQ] and a
// [QP], brings the QP through INIT and RTR to RTS, and then posts work requests and polls
// their completions.
//
// Names are those of the C library without their prefix: IBV_WR_RDMA_WRITE is [OpRDMAWrite],
// ibv_post_send is [QP.PostSend]. Enumerations have the C library's values and print its
// spelling without IBV_.
//
// # Concurrency
//
// Every method may be called from any goroutine. Posting and polling allocate nothing.
//
// # Errors
//
// A verb that fails at once returns an [*OpError], which names the verb, the object and the
// cause. A work request that fails later says so in its completion: [WC.Status], and
// [WC.Err] for a text. Slicing mistakes, such as [MR.SGE] outside the region, panic.
package verbs
