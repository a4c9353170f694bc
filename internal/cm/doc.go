// Package cm is the protocol of the InfiniBand connection manager (CM), which introduces queue
// pairs to each other. RC and UC queue pairs get a connection. UD queue pairs are found by service
// ID resolution (SIDR).
//
// The package is pure: it has no clock, lock, goroutine or socket. Time comes in as an argument.
// Management datagrams (MADs) go in and out as bytes. Changes of connections come out as events.
//
// A connection begins and ends like this:
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
// REQ, REP and DREQ are repeated until they are answered. RTU, DREP, REJ and MRA are sent again
// when the message that they answer comes again. A side whose program takes its time gets the
// question again, and answers by an MRA that the peer should wait. Until a connection is
// established, either side may end the attempt by a REJ.
//
// For each message a table has the actions, indexed by state: see the variables named on… in
// active.go, passive.go, reject.go and disconnect.go. A message without an entry for the state is
// counted and ignored.
//
// The machine acts as Linux does where a peer can tell the difference, with these exceptions. It
// answers a DREQ by itself, so that no peer waits for a slow program. It tells the peer when it
// gives up. It follows up a REJ that the peer may have missed. It repeats a DREQ soon at first,
// since a peer that has not heard of the end takes it for silence. And it keeps for a while, within
// limits, the records that answer repeated messages after the user has gone.
//
// The caller serializes all calls on a [Machine] and on its connections, exchanges and listeners.
// After any call it takes all that [Machine.Transmit] and [Machine.Event] have, and asks
// [Machine.NextTimeout] when to call [Machine.HandleTimeout].
package cm
