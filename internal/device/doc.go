// Package device is the common part of the software devices, whatever carries the data: the objects of a program with
// their limits, the feed of events, the log, and the reactions to the state of the network interface.
//
// A device embeds a [Base]. Its PDs embed a [PD], its completion queues a [CQ]; its SRQs are each an [SRQ], and its QPs
// have [Receives]. The device adds the lock and the transport of each QP, and whatever brings packets or streams. So
// methods that need that lock and that transport, such as PostRecv, stand in each device.
package device
