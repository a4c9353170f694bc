package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Golden frames, as tshark decodes them (see internal/iwarp's test of whole streams).
func TestGoldenFrames(t *testing.T) {
	for _, c := range []struct {
		name string
		f    Frame
		want string
	}{
		{"request of revision 1", Frame{Revision: 1, CRC: true, PrivateData: []byte("hi")},
			"4d504120494420526571204672616d65" + "40010002" + "6869"},
		{"enhanced request", Frame{Revision: 2, Enhanced: true, IRD: 16, ORD: 8, PeerToPeer: true, RTR: RTRFPDU | RTRWrite | RTRRead},
			"4d504120494420526571204672616d65" + "10020004" + "c010c008"},
		{"enhanced reply", Frame{Reply: true, Revision: 2, Enhanced: true, IRD: 8, ORD: 16, PeerToPeer: true, RTR: RTRWrite, PrivateData: []byte{1}},
			"4d504120494420526570204672616d65" + "10020005" + "8008801001"},
		{"reject", Frame{Reply: true, Reject: true, Revision: 1, Markers: true, PrivateData: []byte{}},
			"4d504120494420526570204672616d65" + "a0010000"},
	} {
		got := c.f.AppendTo(nil)
		if hex.EncodeToString(got) != c.want {
			t.Errorf("%s: got %x, want %s", c.name, got, c.want)
		}
		for i := range got {
			if _, _, err := DecodeFrame(got[:i]); !errors.Is(err, ErrShort) {
				t.Fatalf("%s: %d bytes of it: got %v, want %v", c.name, i, err, ErrShort)
			}
		}
		back, n, err := DecodeFrame(append(got, 1, 2, 3))
		if c.f.PrivateData == nil {
			back.PrivateData = nil
		}
		if err != nil || n != len(got) || !reflect.DeepEqual(back, c.f) {
			t.Errorf("%s: decoded as %+v, %d bytes, %v; want %+v, %d", c.name, back, n, err, c.f, len(got))
		}
	}
}

// In revision 1 the bit of the enhanced set-up is reserved, and all private data are the program's: RFC 5044.
func TestReservedBit(t *testing.T) {
	b := (&Frame{Revision: 1, PrivateData: []byte("program")}).AppendTo(nil)
	b[keySize] |= flagEnhanced
	if f, _, err := DecodeFrame(b); err != nil || f.Enhanced || string(f.PrivateData) != "program" {
		t.Errorf("got enhanced %v with %q, %v, want a plain frame with all of its data", f.Enhanced, f.PrivateData, err)
	}
}

func TestBadFrames(t *testing.T) {
	good := (&Frame{Revision: 2, Enhanced: true}).AppendTo(nil)
	long := bytes.Clone(good)
	long[18], long[19] = 2, 1 // 513 bytes: RFC 5044 allows 512
	short := bytes.Clone(good)
	short[19] = 3 // RFC 6581: IRD and ORD take 4
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"no key":   {[]byte("GET / HTTP/1.1\r\n"), "does not speak iWARP"},
		"too long": {long, "513 bytes of private data"},
		"no depth": {short, "3 bytes of private data"},
	} {
		if _, _, err := DecodeFrame(c.frame); err == nil || errors.Is(err, ErrShort) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestTerms checks the terms of two ends: CRCs if one wants them (RFC 5044), depths that fit both and
// one RTR message (RFC 6581).
func TestTerms(t *testing.T) {
	for name, c := range map[string]struct {
		a, b         Offer
		change       func(request *Frame)
		wantA, wantB Terms
	}{
		"equal": {a: Offer{IRD: 4, ORD: 4}, b: Offer{IRD: 4, ORD: 4},
			wantA: Terms{Initiator: true, IRD: 4, ORD: 4, RTR: RTRWrite, PeerIRD: 4, PeerORD: 4},
			wantB: Terms{IRD: 4, ORD: 4, RTR: RTRWrite, PeerIRD: 4, PeerORD: 4}},
		"one wants CRCs, the other fewer READs": {a: Offer{IRD: 4, ORD: 8}, b: Offer{CRC: true, IRD: 2, ORD: 9},
			wantA: Terms{Initiator: true, CRC: true, IRD: 4, ORD: 2, RTR: RTRWrite, PeerIRD: 2, PeerORD: 4},
			wantB: Terms{CRC: true, IRD: 2, ORD: 4, RTR: RTRWrite, PeerIRD: 4, PeerORD: 8}},
		"only READ": {a: Offer{IRD: 1, ORD: 1}, b: Offer{IRD: 1, ORD: 1}, change: func(f *Frame) { f.RTR = RTRRead },
			wantA: Terms{Initiator: true, IRD: 1, ORD: 1, RTR: RTRRead, PeerIRD: 1, PeerORD: 1},
			wantB: Terms{IRD: 1, ORD: 1, RTR: RTRRead, PeerIRD: 1, PeerORD: 1}},
		"not peer to peer": {a: Offer{IRD: 1, ORD: 1}, b: Offer{IRD: 1, ORD: 1}, change: func(f *Frame) { f.PeerToPeer, f.RTR = false, 0 },
			wantA: Terms{Initiator: true, IRD: 1, ORD: 1, PeerIRD: 1, PeerORD: 1},
			wantB: Terms{IRD: 1, ORD: 1, PeerIRD: 1, PeerORD: 1}},
		"the other fewer of its own READs": {a: Offer{IRD: 4, ORD: 4}, b: Offer{IRD: 9, ORD: 4},
			wantA: Terms{Initiator: true, IRD: 4, ORD: 4, RTR: RTRWrite, PeerIRD: 4, PeerORD: 4},
			wantB: Terms{IRD: 4, ORD: 4, RTR: RTRWrite, PeerIRD: 4, PeerORD: 4}},
		"more than a frame can say": {a: Offer{IRD: 1<<14 + 3, ORD: 1 << 20}, b: Offer{IRD: 1 << 20, ORD: 1<<14 + 3},
			wantA: Terms{Initiator: true, IRD: 1<<14 + 3, ORD: MaxDepth, RTR: RTRWrite, PeerIRD: MaxDepth, PeerORD: MaxDepth},
			wantB: Terms{IRD: MaxDepth, ORD: MaxDepth, RTR: RTRWrite, PeerIRD: MaxDepth, PeerORD: MaxDepth}},
		"markers to the responder": {a: Offer{IRD: 1, ORD: 1}, b: Offer{Markers: true, IRD: 1, ORD: 1},
			wantA: Terms{Initiator: true, MarkersOut: true, IRD: 1, ORD: 1, RTR: RTRWrite, PeerIRD: 1, PeerORD: 1},
			wantB: Terms{MarkersIn: true, IRD: 1, ORD: 1, RTR: RTRWrite, PeerIRD: 1, PeerORD: 1}},
		"markers to the initiator": {a: Offer{Markers: true, IRD: 1, ORD: 1}, b: Offer{IRD: 1, ORD: 1},
			wantA: Terms{Initiator: true, MarkersIn: true, IRD: 1, ORD: 1, RTR: RTRWrite, PeerIRD: 1, PeerORD: 1},
			wantB: Terms{MarkersOut: true, IRD: 1, ORD: 1, RTR: RTRWrite, PeerIRD: 1, PeerORD: 1}},
		"revision 1": {a: Offer{IRD: 3, ORD: 3}, b: Offer{CRC: true, IRD: 2, ORD: 2}, change: func(f *Frame) { *f = Frame{Revision: 1} },
			wantA: Terms{Initiator: true, CRC: true, IRD: 3, ORD: 3, PeerIRD: -1, PeerORD: -1},
			wantB: Terms{CRC: true, IRD: 2, ORD: 2, PeerIRD: -1, PeerORD: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			request := c.a.Request()
			if c.change != nil {
				c.change(&request)
			}
			if err := CheckRequest(&request); err != nil {
				t.Fatal(err)
			}
			reply, b := c.b.Answer(&request)
			a, err := c.a.Settle(&reply)
			if err != nil || a != c.wantA || b != c.wantB {
				t.Errorf("got %+v and %+v, %v; want %+v and %+v", a, b, err, c.wantA, c.wantB)
			}
		})
	}
}

// TestSilentReply checks that an end keeps the values that it asked for where the reply names none.
func TestSilentReply(t *testing.T) {
	o := Offer{CRC: true, IRD: 4, ORD: 3}
	if got, err := o.Settle(&Frame{Reply: true, Revision: 2}); err != nil || !got.CRC || got.IRD != 4 || got.ORD != 3 {
		t.Errorf("terms of a reply without CRCs: got %+v, %v, want CRCs, IRD 4 and ORD 3", got, err)
	}
}

func TestRefusals(t *testing.T) {
	o := Offer{IRD: 4, ORD: 3}
	r := o.Request()
	no := Refuse(&r, []byte("why"))
	if no.IRD != 3 || no.ORD != 4 {
		t.Errorf("a rejecting reply to IRD 4, ORD 3: got IRD %d, ORD %d, want them the other way round", no.IRD, no.ORD)
	}
	if _, err := o.Settle(&no); !errors.Is(err, ErrRejected) {
		t.Errorf("a rejecting reply: got %v, want %v", err, ErrRejected)
	}
	for name, f := range map[string]Frame{
		"revision":          {Reply: true, Revision: 3},
		"request":           {Revision: 2},
		"more than our IRD": {Reply: true, Revision: 2, Enhanced: true, ORD: 5},
		"no RTR":            {Reply: true, Revision: 2, Enhanced: true, PeerToPeer: true},
	} {
		if _, err := o.Settle(&f); err == nil || errors.Is(err, ErrRejected) {
			t.Errorf("%s: got %v, want an error of its own", name, err)
		}
	}
	// Whatever revision a peer claims, the answer has one that exists: RFC 5044 has the peer check it.
	for claimed, want := range map[uint8]uint8{0: Revision1, Revision1: Revision1, Revision2: Revision2, 9: Revision2} {
		if no := Refuse(&Frame{Revision: claimed}, nil); no.Revision != want {
			t.Errorf("a rejecting reply to revision %d: got revision %d, want %d", claimed, no.Revision, want)
		}
	}
	for name, f := range map[string]Frame{"revision": {Revision: 0}, "reply": {Reply: true, Revision: 2}} {
		if CheckRequest(&f) == nil {
			t.Errorf("a request with %s passes, want an error", name)
		}
	}
}

func TestSeal(t *testing.T) {
	for n := range 9 {
		fpdu := AppendLength(nil, n)
		fpdu = append(fpdu, bytes.Repeat([]byte{0xa5}, n+TrailerSize(n))...)
		if len(fpdu)%4 != 0 {
			t.Fatalf("a ULPDU of %d bytes: the FPDU has %d, want a multiple of 4", n, len(fpdu))
		}
		Seal(fpdu)
		if !Verify(fpdu) {
			t.Errorf("a ULPDU of %d bytes: its own CRC is wrong, want it right", n)
		}
		if pad := fpdu[LengthSize+n : len(fpdu)-CRCSize]; !bytes.Equal(pad, make([]byte, len(pad))) {
			t.Errorf("a ULPDU of %d bytes: got padding %x, want zeros", n, pad)
		}
		for i := range fpdu {
			fpdu[i] ^= 1
			if Verify(fpdu) {
				t.Errorf("a ULPDU of %d bytes: byte %d changed, and the CRC is right, want it wrong", n, i)
			}
			fpdu[i] ^= 1
		}
	}
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add((&Frame{Revision: 2, Enhanced: true, PrivateData: []byte("x")}).AppendTo(nil))
	f.Add((&Frame{Reply: true, Reject: true, Revision: 1}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, n, err := DecodeFrame(b)
		if err != nil {
			return
		}
		again, m, err := DecodeFrame(fr.AppendTo(nil))
		if err != nil || m != n || !bytes.Equal(again.PrivateData, fr.PrivateData) {
			t.Errorf("%+v is encoded as %+v, %d bytes of %d, %v, want the same", fr, again, m, n, err)
		}
	})
}

// TestOwnReads: a device sends a READ of its own before the end, also where its program wants none. The peer is told of
// it, unless it answers none.
func TestOwnReads(t *testing.T) {
	for _, ird := range []int{0, 1, 7} {
		x, y := Offer{IRD: ird}, Offer{IRD: ird}
		request := x.Request()
		reply, ty := y.Answer(&request)
		tx, err := x.Settle(&reply)
		if err != nil {
			t.Fatal(err)
		}
		if request.ORD != 1 || int(reply.ORD) != min(1, ird) {
			t.Errorf("IRD %d: the ends say that they have %d and %d READs outstanding, want 1 and %d", ird, request.ORD, reply.ORD, min(1, ird))
		}
		if tx.ORD != 0 || ty.ORD != 0 {
			t.Errorf("IRD %d: the programs may have %d and %d READs outstanding, want none", ird, tx.ORD, ty.ORD)
		}
	}
}
