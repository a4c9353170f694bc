// Package stage plays a lesson between two hosts, step by step: the whole software HCA at both ends, on a network whose
// packets lie on a table. Whoever watches may look at everything between two steps, and decide what becomes of a packet.
//
// Nothing of the protocol is made anew here. The devices are those of package hca, driven, with their transport,
// recovery, memory and queues, and the connection manager is the machine of package cm on a real QP1. The stage adds a
// clock, a network of two ends, two programs that post and poll, and views of what there is.
//
// A stage is one goroutine, and depends on its [Settings] and on the decisions alone. So the same settings and decisions
// make the same play, to the byte and to the nanosecond, and [Settings.Encode] with [Decisions] in a URL are the play.
//
//	New(settings) -> Stage        Step: one event      Decide: drop, delay, damage, copy, deliver, post
//	                              View: everything     Packet: the bytes of one, field by field
package stage
