// Package hca is a software host channel adapter: an RDMA device without a card. It implements
// [verbs.ProviderDevice], and runs the transport of its queue pairs over a [link.Link] for each of its
// addresses.
//
// It makes a device of packages transport, mem and queue by adding locks, numbers, limits,
// timers, demultiplexing and the links. The way of a packet out stands at the head of send.go, the way
// in at the head of receive.go, and both ways through memory shared with another process at the head
// of lane.go.
//
// A post transmits on the caller's goroutine. A poll that finds its queue empty receives packets, works them off,
// and then looks again. For each address in use one goroutine sleeps until there is
// something to receive or a timer to serve. It naps while a program polls: see limits.go. It spins for a
// short time before it sleeps, if its latest sleeps were short: see spin.go. An idle device does not spin.
//
// Locks, each taken only after those before it:
//
//	retired.mu the counts of closed QPs
//	engine.rx  one receiver at a time
//	qp.mu      the QP's transport, and sending in the order of PSNs
//	xrc.mu     the XRC domains
//	the locks inside device, mem and queue, cq.mu, timers.mu, turns.mu
//
// groups.mu is taken before engine locks when a QP attaches to a multicast group, and never while
// a qp.mu is held.
package hca
