// Package transport is the reliable connection (RC) protocol of one queue pair: requester,
// responder and completer. It is pure: it has no clock, lock, goroutine or socket. Time comes
// in as an argument, packets go in and out as bytes, and memory, receives and completions are
// reached through [Host].
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
// The caller serializes all calls on a QP. After any call it asks Transmit for packets until
// there are none, and then NextTimeout for when to call HandleTimeout.
package transport
