// Package hca is the software host channel adapter: a [verbs.ProviderDevice] that runs the
// transport of its queue pairs over a [link.Link] for each of its addresses.
//
// Nobody spins. A post transmits on the caller's goroutine; a poll that finds its queue empty
// receives and works off what has arrived before it says so; and one goroutine for each address
// in use sleeps until there is something to receive or a timer to serve, for as long as nobody
// polls.
//
// Locks, each taken only after those before it:
//
//	engine.rx  one receiver at a time
//	qp.mu      the QP's transport, and sending in the order of PSNs
//	mw.mu, recvQueue.mu, srq.mu, cq.mu, timers.mu, turns.mu, events.mu
//
// groups.mu is taken before engine locks when a QP attaches to a multicast group, and never while
// a qp.mu is held.
package hca
