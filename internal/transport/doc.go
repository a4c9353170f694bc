// Package transport is the protocol of one queue pair: reliable connection (RC), with requester,
// responder and completer, unreliable connection (UC) and unreliable datagram (UD). It is pure:
// it has no clock, lock, goroutine or socket. Time comes in as an argument, packets go in and out
// as bytes, and memory, receives and completions are reached through [Host].
//
//	           Post                    Transmit
//	program ---------> send queue ---> requester -----> request packets
//	                                      ^ go back, skip
//	CompleteSend <---- completer <--------+------------ acknowledgements, READ responses
//	                                                          (HandlePacket)
//	CompleteRecv <---- responder <--------------------- request packets
//	                      |            Transmit
//	                      +---------------------------> acknowledgements, READ responses
//
// UC and UD have neither completer nor acknowledgements: see unreliable.go.
//
// The caller serializes all calls on a QP. After any call it gives the QP a turn: it asks Transmit
// for packets until there are none, Pending whether there are more for another turn, and
// NextTimeout for when to call HandleTimeout. See [QP.Turn].
package transport
