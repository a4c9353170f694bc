// Package rdmamsg sends messages of any size over a reliable connection, with flow control.
//
// A SEND needs a receive that the peer has posted, and that is large enough. Every program on verbs
// therefore counts receives, and agrees with its peer on sizes. A [Channel] does both:
//
//	ch, err := rdmamsg.Dial(ctx, addr, nil)
//	err = ch.Send(ctx, []byte("hello"))
//	m, err := ch.Recv(ctx)
//	use(m.Bytes())
//	m.Release()
//
// Small messages are sent eagerly: the messages are copied into a slot of registered memory and go out by
// SEND. The peer grants a credit for each receive that the peer has posted for small messages, and returns
// credits in the header of every frame, or in a frame of their own when half of the credits are owed. A
// sender without credits waits. So no SEND ever finds the peer without a receive.
//
// Large messages go by rendezvous: the sender announces where the message lies, and the receiver
// fetches the message by RDMA READ straight into a buffer, once the receiver has a buffer. [Channel.SendBuffer] and
// [Message.Bytes] are then free of copies at both ends.
//
// The memory of a channel is bounded: Config.Depth slots each way, and as much as the pools allow for
// large messages. A program that does not call Recv, or does not release its messages, holds its peer
// back. One goroutine for each completion queue makes progress, whatever the number of messages.
// In steady state sending and receiving allocate nothing.
//
// # Ends
//
// [Channel.Shutdown] ends the sending direction in order: the peer's Recv returns [io.EOF] after the
// last message. Any other end is an [*Error], which tells how many messages the peer is known to
// have, and of how many nobody knows. A peer that has died without a word is noticed by the next
// send that is not acknowledged, or by the keep-alive.
//
// # Trust
//
// The peer can read the regions in which large messages to it lie, while it knows their keys. Peers
// that must not see each other's data need a SendPool each, which is the default. A peer that does
// not keep to the protocol ends the channel.
package rdmamsg
