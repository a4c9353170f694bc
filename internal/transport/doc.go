// Package transport is the protocol of one queue pair: reliable connection (RC), unreliable
// connection (UC) and unreliable datagram (UD).
//
// It is pure: it has no clock, lock, goroutine or socket. Time and packets come in as arguments of
// method calls. Packets go out as bytes. Completions, events and the state are outputs that the caller
// collects after a call. Memory is reached through package mem, receives through [queue.Receives]. So the code
// that runs over UDP also runs in a simulated network, and a failure there replays from a seed.
//
// A reliable connection:
//
//	        Post               next()                Transmit
//	program ----> sendQueue <-------- requester --------------> requests
//	                  ^                   ^ the next packet, and whether it may go
//	                  | done              |
//	              completer ---------> recovery     (una, nxt, max, timers, retries, window)
//	                  ^
//	                  +---------------------------------------- acknowledgements, READ responses
//
//	Completions <---- responder <------------------------------ requests           HandlePacket
//	                      +-----------------------------------> acknowledgements,  Transmit
//	                                                            READ responses
//
// UC and UD share the send queue and the receiver with RC. They have neither acknowledgements nor
// recovery: see sender.go, uc.go and ud.go.
//
// The caller serializes all calls on a QP. After any call that may have changed something, the caller
// gives the QP a turn: it asks Transmit for packets until there are none, takes Completions and Events,
// asks Pending whether the QP needs another turn, and NextTimeout for when to call HandleTimeout.
// See [QP.Turn].
package transport
