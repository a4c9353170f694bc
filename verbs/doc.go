// Package verbs is an API for RDMA: a program sends messages to programs on other hosts, and reads
// and writes their memory, through a network device and without the other host's CPU.
//
// The API is that of libibverbs, with its objects and its rules: devices, protection domains (PD),
// memory regions (MR), completion queues (CQ) and queue pairs (QP). A program opens a [Device],
// allocates a [PD], registers memory with it, and creates a [CQ] and a [QP]. It takes the QP through
// the states INIT and RTR to RTS, which connects it to a peer. Then it posts work requests and polls
// for their completions.
//
// The package is the contract only. Devices come from providers. A provider registers itself when
// a program imports it, as the drivers of database/sql do:
//
//	import (
//		"github.com/adverb-rdma/adverb/verbs"
//		_ "github.com/adverb-rdma/adverb/provider/soft" // software RoCEv2 devices
//	)
//
// Names are those of the C library without their prefix: IBV_WR_RDMA_WRITE is [OpRDMAWrite], and
// ibv_post_send is [QP.PostSend]. Enumerations have the C library's values, and print the C
// library's names without IBV_.
//
// # Devices differ
//
// The API covers InfiniBand, RoCE and iWARP. A path to a peer is made of LIDs on InfiniBand and of
// GIDs on RoCE: see [AHAttr]. On iWARP the connection manager takes QPs to RTS: see
// [Transport.CheckModify]. What a device promises beyond the verbs, as the software device of this
// module does, is in [DeviceAttr].Guarantees.
//
// # Concurrency
//
// Every method may be called from any goroutine. Posting and polling allocate nothing.
//
// # Errors
//
// A verb that fails at once returns an [*OpError], which names the verb, the object and the cause;
// errors.Is finds the kind of the cause, such as [ErrBusy]. A work request that fails later says so
// in its completion: [WC.Status] is how it ended, and [WC.Err] is an error with an explanation.
// Slicing mistakes, such as [MR.SGE] outside the region, panic.
package verbs
