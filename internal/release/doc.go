// Package release stores words for others to see, in order, and no more than that.
//
// A store of package sync/atomic is sequentially consistent: no load that follows it is done before others see it. On
// x86 that takes an instruction that waits until all stores before it have reached the cache, which costs some 8 ns and,
// where a cache line has to come from another processor, as long as that takes. Whoever publishes a count, and does not
// look then at what others have published, needs only that what was stored before is seen before. There Store does it.
//
// So each use names the load that follows, and why it may be early. These are all:
//
//	stored                 seen by                    what the one who stores looks at next
//	Mutex.taken, Unlock    who waits for the lock     nothing of those who wait. What the lock guards is not looked
//	                                                  at behind Unlock: a QP's state is under the lock of its receives
//	queue.RecvQueue.posted the transport's Take       nothing: Enter, which comes before a Flush, takes the lock
//	queue.RecvQueue.taken  Credits, of an error text  posted, again: who posts does not look at taken
//	queue.CQ.shown         polls, without the lock    arm, which is under the same lock
//	slots of a CQE         who posts to the queue     nothing: a place that is seen late is free late
//	shm.In.read            Inbox.Sleep                wants, behind the atomic store of head
//	shm.Access.busy, End   Grant.Revoke, which waits  nothing: Begin stores by an atomic
//
// Whoever stores and then looks at what another stores before its own look needs an atomic store, or one lock for both.
// In shm these are Out.Publish (tail, then asleep) against Inbox.Sleep, In.Release (head, then wants) against
// Out.AwaitRoom, and Access.Begin (busy, then state) against Grant.Revoke. Tests named TestLitmus race each pair.
package release
