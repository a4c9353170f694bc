// Package device is what the software devices have in common, whatever carries the data: the objects of a program with
// their limits, the feed of events, the log, and what follows from the state of the network interface.
//
// A device embeds a [Base]. Its PDs embed a [PD], its completion queues a [CQ], and its SRQs are each an [SRQ]. The
// device adds its QPs, and whatever brings them packets or streams.
package device
