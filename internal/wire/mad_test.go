package wire

import (
	"encoding/binary"
	"testing"
)

func TestMADHeader(t *testing.T) {
	want := MADHeader{BaseVersion: 1, MgmtClass: 2, ClassVersion: 3, Method: 4, Status: 0x0506, ClassSpecific: 0x0708,
		TID: 0x090a0b0c0d0e0f10, AttrID: 0x1112, AttrMod: 0x15161718}
	if got, err := DecodeMADHeader(seq(MADHeaderSize)); err != nil || got != want {
		t.Errorf("DecodeMADHeader = %+v, %v, want %+v", got, err, want)
	}
	wire := seq(MADHeaderSize)
	clear(wire[18:20]) // reserved: ignored, and sent as zero
	checkEncodes(t, "MAD header", want.AppendTo, wire)
	for n := range MADHeaderSize {
		if _, err := DecodeMADHeader(make([]byte, n)); err != ErrShortMAD {
			t.Errorf("MAD header of %d bytes: %v, want ErrShortMAD", n, err)
		}
	}
}

func TestMADHeaderCM(t *testing.T) {
	good := NewCMHeader(CMREQ, 1)
	for name, change := range map[string]func(*MADHeader){
		"base version":    func(h *MADHeader) { h.BaseVersion = 0x80 },
		"class":           func(h *MADHeader) { h.MgmtClass = 4 },
		"class version":   func(h *MADHeader) { h.ClassVersion = 1 },
		"method":          func(h *MADHeader) { h.Method = 0x81 },
		"attribute below": func(h *MADHeader) { h.AttrID = 0x0f },
		"attribute above": func(h *MADHeader) { h.AttrID = 0x1b },
		"attribute far":   func(h *MADHeader) { h.AttrID = 0x0110 },
	} {
		h := good
		change(&h)
		if attr, ok := h.CM(); ok {
			t.Errorf("another %s: CM() = %v, true, want false", name, attr)
		}
	}
	if attr, ok := good.CM(); attr != CMREQ || !ok {
		t.Errorf("CM() = %v, %v, want REQ, true", attr, ok)
	}
}

// TestCMRoute checks that each kind of message is routed by a number that the receiver knows.
func TestCMRoute(t *testing.T) {
	const service, first, second = 0x1122334455667788, 0xa1a2a3a4, 0xb1b2b3b4
	for attr := CMREQ; attr <= CMAPR; attr++ {
		var m cmMessage
		want := Route{Attr: attr, CommID: second}
		switch attr {
		case CMREQ:
			m, want = &REQ{LocalCommID: first, ServiceID: service}, Route{Attr: attr, ServiceID: service}
		case CMSIDRREQ:
			m, want = &SIDRREQ{RequestID: first, ServiceID: service}, Route{Attr: attr, ServiceID: service}
		case CMSIDRREP:
			m, want = &SIDRREP{RequestID: first, ServiceID: service}, Route{Attr: attr, CommID: first}
		default:
			data := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, first), second)
			var err error
			if m, err = cmCodecFor(t, attr).decode(append(data, make([]byte, CMDataSize)...)); err != nil {
				t.Fatal(err)
			}
		}
		h := NewCMHeader(attr, 7)
		mad := m.AppendTo(h.AppendTo(nil))
		if r, ok := CMRoute(mad); r != want || !ok {
			t.Errorf("%v goes to %+v, %v, want %+v", attr, r, ok, want)
		}
		if r, ok := CMRoute(mad[:MADSize-1]); ok {
			t.Errorf("%v without its last byte: got %+v, want no route", attr, r)
		}
		mad[1]++ // another class
		if r, ok := CMRoute(mad); ok {
			t.Errorf("no CM message: got %+v, want no route", r)
		}
	}
	if _, ok := CMRoute(nil); ok {
		t.Error("no bytes: got a route, want none")
	}
}
