// Package uverbs is the kernel's side of /dev/infiniband/uverbsN, on the verbs of this module: it carries out the commands
// that libibverbs writes, as ib_uverbs and rdma_rxe do in Linux, and serves the queues that rxe's provider in libibverbs
// shares with its driver.
//
//	program                          here                         verbs
//	command, by write or ioctl  ->   Context.Do             ->    PD, MR, MW, CQ, QP, SRQ, AH
//	element in a send queue     ->   Context.Doorbell       ->    QP.PostSend
//	element in a receive queue  ->   when one is asked for  ->    QP.PostRecv
//	element in a CQ             <-   cq.complete            <-    as it completes
//	event in a pipe             <-   channel.send           <-    Device.NextEvent, CQ
//
// A [Context] is one opening of the device. It has a verbs device of its own, so that what the program leaves behind goes
// with it. Its queues lie in a sparse file in memory (area.go), which the program maps by the descriptor that it has opened.
//
// Whoever serves the program's calls gives a [Caller] with each: how to read and write the program's memory, and to hand it
// a descriptor. What the program wrote is input: queues are read once, indices are masked, and no number of the program's
// is an address here.
package uverbs
