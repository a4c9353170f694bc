// Package shm carries packets between the processes of one host through memory that they share. It knows neither
// verbs nor the processes' rights to talk to each other.
//
// A lane leads from one process to one local address of another. It is a ring in a sealed memfd: the sender maps it
// as an [Out], the receiver as an [In]. A pair of processes that talk with each other has two lanes. An [Inbox] holds
// the lanes that end at an address, and the bell by which a sender wakes a sleeping receiver. While the receiver
// polls, nobody makes a system call.
//
//	sender                     memfd                      receiver
//	Out.Reserve -> writes ->  record  record  record  -> In.Next -> reads
//	Out.Publish -> tail                                   In.Release -> head
//	     |                     asleep  <------------------ Inbox.Sleep
//	     +----> bell (eventfd), only if asleep ----------> a goroutine that waits for Inbox.Bell
//	Out.AwaitRoom ---------->  wants
//	the sender's bell <---------- only if wanted, when half of the lane is free --- In.Release
//
// Each word of the ring's header has one writer, but for asleep and wants, which either end clears. Neither end holds
// a lock in shared memory, and neither waits for the other: a full lane refuses the next record. So a process that is
// killed or stopped at any instant leaves nothing behind that blocks another. A record appears whole, by the store to
// tail, or not at all.
//
// A payload may lie in the record or, if it is long, in memory that the sender lends: see [Loan].
//
// Each end treats the words of the other end as input. Every index and length is read once and checked. One that
// cannot be right breaks the lane for good: [Out.Broken], [In.Next].
package shm
