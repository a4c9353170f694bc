// Package cm is the protocol of the InfiniBand connection manager (CM), which introduces queue pairs
// to each other: RC and UC ones by a connection, UD ones by service ID resolution (SIDR). It is pure:
// it has no clock, lock, goroutine or socket. Time comes in as an argument, management datagrams
// (MADs) go in and out as bytes, and what happens to connections comes out as events.
//
// A connection begins and ends so:
//
//	active side                                             passive side
//	Connect      REQ sent      ---- REQ --------------->    REQ rcvd      EventRequest
//	EventReply   REP rcvd      <--------------- REP ----    REP sent      Accept
//	Ready        established   ---- RTU --------------->    established   EventEstablished
//
//	Disconnect   DREQ sent     ---- DREQ -------------->    time-wait     EventDisconnected
//	EventDisc…   time-wait     <-------------- DREP ----
//	EventTimeWaitExit, idle                                 EventTimeWaitExit, idle
//
// REQ, REP and DREQ are repeated until they are answered; RTU, DREP, REJ and MRA are sent again when
// the message that they answer comes again. A side that takes its time is asked again, and tells the
// peer to wait by an MRA. Either side may end the matter by a REJ before it is established.
//
// Where a message leads is a table for each message, indexed by state: see the variables named on…
// in active.go, passive.go, reject.go and disconnect.go. A message without an entry for the state is
// counted and ignored.
//
// The machine acts as Linux's does where a peer can tell, with these differences: it answers a DREQ by
// itself, so that no peer waits for a slow program; it tells the peer when it gives up; a REJ which
// the peer may have missed is followed up; and what is repeated after the user has gone is
// remembered for a while, within limits.
//
// The caller serializes all calls on a [Machine] and what belongs to it. After any call it takes
// what there is of [Machine.Transmit] and [Machine.Event], and asks [Machine.NextTimeout] for when to
// call [Machine.HandleTimeout].
package cm
