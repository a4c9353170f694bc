//go:build !adverb_portable

package shm

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hostile is a lane whose sender writes the fuzzer's input.
type hostile struct {
	t       *testing.T
	in      []byte
	peer    ring // of the sender
	i       *In
	files   map[uint64][]byte
	written []uint64 // where headers were written
}

// FuzzNext: whatever the sender of a lane writes into it, and whenever, each payload that the receiver takes lies in
// the ring or in a file that it has mapped, is as the sender has described it, and ends. After nonsense the receiver
// takes nothing from that sender again.
func FuzzNext(f *testing.F) {
	o, fd, err := NewOut() // its memory serves all inputs
	if err != nil {
		f.Fatal(err)
	}
	defer unix.Close(fd)
	near, err := mapRing(fd)
	if err != nil {
		f.Fatal(err)
	}
	defer near.unmap()
	defer o.Close()
	f.Add(uint8(0), []byte{0, 100, inLane, 3, 0, 0, 200, inLane, 3, 0, 4, 3, 5})
	f.Add(uint8(1), []byte{0, 100, lent, 1, 5, 16, 32, 1, 3, 0, 6, 3, 0, 100, lent, 1, 6, 0, 1, 1, 3, 0, 7, 5, 3, 3})
	f.Add(uint8(2), []byte{1, 255, 3, 0, 3, 2, 0, 3, 4, 5, 3})
	f.Add(uint8(1), []byte{0, 56, skipped, 0, 0, 120, skipped, 1, 0, 100, inLane, 4, 3, 0, 56, skipped, 0, 3, 4, 5, 3})
	f.Add(uint8(3), []byte{0, 20, lent, 1, 5, 255, 255, 0, 3, 0, 3, 7, 5, 3, 3})
	f.Fuzz(func(t *testing.T, start uint8, in []byte) {
		if len(in) > 2048 {
			return
		}
		guarded := bytes.Repeat([]byte{0xa7}, 256)
		h := &hostile{t: t, in: in, peer: o.ring, i: &In{ring: near, hangup: func() {}}, files: map[uint64][]byte{5: guarded[64:192:192], 6: make([]byte, 1)}}
		h.i.files.open = map[uint64]mappedFile{}
		for id, b := range h.files {
			h.i.files.open[id] = mappedFile{b, func() {}}
			h.i.files.size += int64(len(b))
		}
		pos := uint64(start) * ringBytes / 4 // of records, the last of which is at the ring's end
		if start%4 != 0 {
			pos -= recordAlign
		}
		h.peer.tail.Store(pos)
		h.peer.head.Store(pos)
		h.i.pos, h.i.seen = pos, pos
		h.i.read.Store(pos)
		for len(h.in) > 0 {
			h.step()
		}
		for _, at := range h.written {
			clear(h.peer.data[at&(ringBytes-1):][:2*recordAlign])
		}
		h.i.files.close()
		if len(h.i.files.open) > 0 {
			t.Fatal("files are mapped after the end")
		}
	})
}

func (h *hostile) byte() uint64 {
	if len(h.in) == 0 {
		return 0
	}
	b := h.in[0]
	h.in = h.in[1:]
	return uint64(b)
}

// number is small, or near a power of two.
func (h *hostile) number() uint64 {
	b := h.byte()
	if b < 0xc0 {
		return b
	}
	return 1<<(b&0x3f) - 8 + h.byte()%16
}

func (h *hostile) step() {
	switch h.byte() % 8 {
	case 0: // a record behind the others, which is shown
		at := h.peer.tail.Load()
		n := h.record(at)
		h.peer.tail.Store(at + space(int(n)))
	case 1: // any tail
		h.peer.tail.Store(h.i.pos + h.number()<<(h.byte()%32) - h.byte())
	case 2: // a record where the receiver reads next
		h.record(h.i.pos)
	case 3:
		h.next()
	case 4:
		h.i.Release()
		if head := h.peer.head.Load(); head != h.i.pos {
			h.t.Fatalf("the receiver gives back up to %d, and has read to %d, want the same", head, h.i.pos)
		}
	case 5: // the whole record, which ends
		most := ringBytes/recordAlign + 1
		for k := 0; h.next(); k++ {
			if k > most {
				h.t.Fatalf("more than %d records in a ring of %d bytes, want no more than fit", most, ringBytes)
			}
		}
	case 6: // words of the receiver
		h.peer.head.Store(h.number())
		h.peer.asleep.Store(uint32(h.byte()))
		h.peer.wants.Store(uint32(h.byte()))
		h.peer.head.Store(h.i.read.Load())
	case 7: // a file is gone
		id := h.byte()
		h.i.Withdrawn(id)
		h.i.files.drop()
		delete(h.files, id)
	}
}

// record writes a record. It returns the record's declared length.
func (h *hostile) record(pos uint64) uint64 {
	n, state, loan := h.number()&(1<<32-1), uint32(h.byte()), h.byte()
	h.written = append(h.written, pos)
	d := h.peer.data[pos&(ringBytes-1)&^7:]
	binary.NativeEndian.PutUint32(d, uint32(n))
	binary.NativeEndian.PutUint32(d[4:], state|uint32(loan)<<packetsShift)
	if loan != 0 && n >= loanSize && n <= recordAlign {
		b := d[recordHeader+n-loanSize:]
		binary.NativeEndian.PutUint64(b, h.number())
		binary.NativeEndian.PutUint64(b[8:], h.number())
		binary.NativeEndian.PutUint32(b[16:], uint32(h.number()))
		binary.NativeEndian.PutUint32(b[20:], uint32(h.number()))
	}
	return n
}

// next takes a record and checks it. It reports whether there was one.
func (h *hostile) next() bool {
	i, t := h.i, h.t
	pos, tail, broken := i.pos, i.tail.Load(), i.broken.Load()
	if pos%8 != 0 {
		t.Fatalf("the receiver is at %d, where no record can be, want a multiple of 8", pos)
	}
	b := i.Next()
	for pos != i.pos && i.state(pos).Load()%(1<<packetsShift) == skipped {
		pos += space(int(i.length(pos)))
	}
	if b == nil {
		if i.pos != pos {
			t.Fatalf("no record, but the receiver went from %d to %d, want it to stay", pos, i.pos)
		}
		return false
	}
	if i.Packets() > maxPackets || i.Packets() < 0 {
		t.Fatalf("a record stands for %d packets, want from 0 to %d", i.Packets(), maxPackets)
	}
	if broken {
		t.Fatal("a record of a sender that has written nonsense before")
	}
	want := pos&(ringBytes-1) + recordHeader
	if at := offset(i.data, b); cap(b) > 0 && at != want || uint64(len(b)) > ringBytes || cap(b) > len(i.data)-int(want) {
		t.Fatalf("a record of %d bytes at %d of the ring, want it at %d and inside", len(b), at, want)
	}
	if i.pos <= pos || i.pos > i.seen || i.seen-pos > ringBytes {
		t.Fatalf("the receiver went from %d to %d, and records are to %d (%d), want it to go on, no further than they", pos, i.pos, i.seen, tail)
	}
	l := i.Lent()
	if l == nil {
		return true
	}
	if l.Payload != nil {
		said := i.data[want+uint64(len(b)):]
		file, off, n := h.files[binary.NativeEndian.Uint64(said)], binary.NativeEndian.Uint64(said[8:]), binary.NativeEndian.Uint32(said[16:])
		if uint64(len(l.Payload)) != uint64(n) || off+uint64(n) > uint64(len(file)) || offset(file, l.Payload) != off || i.Packets() < 1 {
			t.Fatalf("%d bytes are lent at %d of a file of %d, for %d packets; the sender said %d at %d, want the same, inside of the file", len(l.Payload), offset(file, l.Payload), len(file), i.Packets(), n, off)
		}
	}
	l.Taken()
	if l.Taken() {
		t.Fatal("a payload is taken twice")
	}
	return true
}

// offset is the distance of part's beginning from the beginning of whole.
func offset(whole, part []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(whole))))
}
