// Package queue holds the queues of a software device: completion queues, receive queues, shared
// receive queues, and the feed of asynchronous events.
//
//	PostRecv -> RecvQueue or SRQ -> a transport takes receives, and completes them
//	transport -> CQE -> CQ -> Poll
//
// The package knows no transport and no network. A device gives its queues hooks for the work that
// only a device can do: to make progress when a poll finds nothing, and to raise events.
package queue
