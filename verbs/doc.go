// Package verbs is an API for RDMA: a program sends messages to programs on other hosts, and reads
// and writes their memory, through a network device and without the other host's CPU.
//
// # Where to begin
//
// The API is that of libibverbs, with its objects and its rules. Read the types in the order in which a
// program meets them:
//
//   - [Device]: [Open] opens one by its name, and [Devices] lists them. [Device.GID] is its address.
//   - [PD], a protection domain: the objects of a PD trust each other. [Device.AllocPD] makes one.
//   - [MR], a memory region: memory that the device may use. [PD.AllocMR], [PD.RegMR]; [MR.SGE], [MR.Remote].
//   - [CQ], a completion queue: [Device.CreateCQ]; [CQ.Poll], [CQ.Wait].
//   - [QP], a queue pair, one end of a connection: [PD.CreateQP]. [QP.Init], [QP.RTR] and [QP.RTS] connect
//     it to a [Peer] by hand; package rdmacm does it by address and port.
//   - [SendWR] and [RecvWR], the work requests: [QP.PostRecv], then [QP.PostSend].
//   - [WC], a completion: [WC.Status] says how a work request ended, and [WC.Err] explains it.
//
// The Example of package provider/soft is a whole program. Names that begin with Provider are for implementers of
// providers, and programs need none of them: see the end of this page.
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
// [Transport.CheckModify]. The promises of a device beyond the verbs, of which the software device
// of this module makes all, are in [DeviceAttr].Guarantees.
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
//
// # For implementers of providers
//
// [Provider] says what the types of this package do before they call a provider, and what a provider
// does. A provider implements it with [ProviderDevice], [ProviderPD], [ProviderMR], [ProviderCQ],
// [ProviderQP], [ProviderSRQ], [ProviderAH] and [ProviderMW], and calls [Register]. Its errors are made
// by [Errorf]. The other Provider… interfaces are for what not all devices have: a device or a QP that
// has it implements the interface too. Package verbs/verbstest tests a provider.
package verbs
