//go:build !adverb_portable

package shm

import (
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/litmus"
)

// TestLitmusPublishVersusNext: a record is found whole, or later.
func TestLitmusPublishVersusNext(t *testing.T) {
	o, in, _ := lane(t)
	buf, got := make([]byte, 100), make([]byte, 0, 100)
	number := uint64(0)
	next := func() { got = append(got[:0], in.Next()...) }
	litmus.Race(t, 2, func() {
		number++
		fill(buf, number)
	}, func() { send(o, buf) }, next, func() string {
		if len(got) == 0 {
			next()
		}
		if in.Release(); string(got) != string(buf) {
			return fmt.Sprintf("record %d is % x, want % x", number, got, buf)
		}
		return ""
	})
}

// TestLitmusPublishVersusSleep: a receiver that goes to sleep while a record comes sees the record, or gets the bell.
func TestLitmusPublishVersusSleep(t *testing.T) {
	o, in, box := lane(t)
	quiet := false
	litmus.Race(t, 10, func() {}, func() { send(o, []byte{1}) }, func() { quiet = box.Sleep() }, func() string {
		if quiet && rings(box) == 0 {
			return "the receiver has seen no record before it slept, and its bell has not rung"
		}
		box.Awake()
		in.Next()
		in.Release()
		return ""
	})
}

// TestLitmusReleaseVersusRoom: a sender that waits for room while the receiver makes some sees the room, or gets the
// bell.
func TestLitmusReleaseVersusRoom(t *testing.T) {
	o, in, _, back := laneBack(t)
	const size = ringBytes / 3 // one is less than half of the ring, and two are more
	roomy := false
	litmus.Race(t, 10, func() {
		o.Lock()
		defer o.Unlock()
		for range 2 {
			o.Reserve(size)
			o.Commit(size, 1)
		}
		o.Publish()
	}, func() {
		in.Next()
		in.Release()
	}, func() { roomy = o.AwaitRoom() }, func() string {
		if rung := rings(back); !roomy && rung == 0 {
			return "the sender has seen no room, and its bell has not rung"
		}
		in.Next()
		in.Release()
		return ""
	})
}

// longOperation is the bytes of an operation that writes them one by one, and so takes longer than Revoke.
const longOperation = 2048

// coldLines is how many lines the operation has written before.
const coldLines = 32

// TestLitmusBeginVersusRevoke: once Revoke has returned, the sender writes nothing any more.
func TestLitmusBeginVersusRevoke(t *testing.T) {
	g := newGranting(t)
	var a *Access
	stuck, begun := uint64(0), 0
	litmus.Race(t, 5, func() {
		if a = g.ask(2); a == nil {
			t.Fatal("no access")
		}
	}, func() {
		for i := range coldLines { // stores before those of Begin, which wait for lines in the other thread's cache
			a.Bytes[longOperation+64*i] = 1
		}
		if a.Begin(0) {
			begun++
			for i := range longOperation { // Revoke takes its time
				a.Bytes[i] = 1
			}
			a.Bytes[0] = 1
			a.End()
		}
	}, func() {
		_, stuck = g.grants[0].Revoke()
		g.bytes[0] = 2
		for i := range coldLines {
			g.bytes[longOperation+64*i] = 2
		}
	}, func() string {
		if stuck == 0 && g.bytes[0] != 2 { // a thread that waits for a processor in the middle is stuck
			return "the sender has written after Revoke"
		}
		g.hear()
		g.o.Return(a)
		g.grants, g.got = g.grants[:0], g.got[:0]
		return ""
	})
	t.Logf("%d operations began before Revoke", begun)
}

// TestLitmusEndVersusRevoke: once Revoke has returned, all the sender's writes are there.
func TestLitmusEndVersusRevoke(t *testing.T) {
	g := newGranting(t)
	var a *Access
	var seen [64]byte
	stuck, began := uint64(0), false
	litmus.Race(t, 20, func() {
		if a = g.ask(2); a == nil {
			t.Fatal("no access")
		}
		clear(g.bytes[:len(seen)])
	}, func() {
		if began = a.Begin(0); began {
			for i := range seen {
				a.Bytes[i] = 1
			}
			a.End()
		}
	}, func() {
		_, stuck = g.grants[0].Revoke()
		seen = [64]byte(g.bytes)
	}, func() string {
		if began && stuck == 0 && seen != [64]byte(g.bytes) {
			return fmt.Sprintf("after Revoke the memory was % x, and became % x", seen, g.bytes[:len(seen)])
		}
		g.hear()
		g.o.Return(a)
		g.grants, g.got = g.grants[:0], g.got[:0]
		return ""
	})
}

// TestLitmusTakenVersusRecall: a payload that counts as taken is as it was when it was lent.
func TestLitmusTakenVersusRecall(t *testing.T) {
	o, in, b := lendingLane(t)
	_, memory := b.mapped(t, o, 5)
	l := Loan{File: 5, Len: 64, Packets: 1}
	var got [64]byte
	var pos uint64
	taken := false
	litmus.Race(t, 3, func() {
		clear(memory[:len(got)])
		pos = commitLoan(o, "x", l)
		in.Next()
	}, func() {
		got = [64]byte(in.Lent().Payload)
		taken = in.Lent().Taken()
	}, func() {
		o.Lock()
		o.Recall([]uint64{pos})
		o.Unlock()
		for i := range got {
			memory[i] = 1
		}
	}, func() string {
		if in.Release(); taken && got != [64]byte{} {
			return fmt.Sprintf("% x was taken of a payload that was lent as zeros", got)
		}
		return ""
	})
}
