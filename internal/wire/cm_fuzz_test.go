package wire

import (
	"bytes"
	"testing"
)

// fuzzCM checks that a decoded message of one kind encodes to the same bytes, except for reserved
// bits.
func fuzzCM(f *testing.F, attr CMAttr) {
	c := cmCodecFor(f, attr)
	f.Add(make([]byte, CMDataSize))
	f.Add(bytes.Repeat([]byte{0xff}, CMDataSize))
	f.Add(seq(CMDataSize - 1))
	for _, g := range loadGoldenMADs(f) {
		if g.attr == attr.String() {
			f.Add(g.mad[MADHeaderSize:])
		}
	}
	ones, err := c.decode(bytes.Repeat([]byte{0xff}, CMDataSize))
	if err != nil {
		f.Fatal(err)
	}
	kept := ones.AppendTo(nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := c.decode(data)
		if len(data) < CMDataSize {
			if err != ErrShortMAD {
				t.Fatalf("%d bytes: %v, want ErrShortMAD", len(data), err)
			}
			return
		}
		want := make([]byte, CMDataSize)
		for i := range want {
			want[i] = data[i] & kept[i]
		}
		if got := m.AppendTo(nil); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%x decodes and encodes to\n%x, %v, want\n%x", data[:CMDataSize], got, err, want)
		}
		if rej, ok := m.(*REJ); ok && len(rej.Info()) > REJInfoSize {
			t.Fatalf("got %d bytes of information, want at most %d", len(rej.Info()), REJInfoSize)
		}
	})
}

func FuzzREQ(f *testing.F)     { fuzzCM(f, CMREQ) }
func FuzzMRA(f *testing.F)     { fuzzCM(f, CMMRA) }
func FuzzREJ(f *testing.F)     { fuzzCM(f, CMREJ) }
func FuzzREP(f *testing.F)     { fuzzCM(f, CMREP) }
func FuzzRTU(f *testing.F)     { fuzzCM(f, CMRTU) }
func FuzzDREQ(f *testing.F)    { fuzzCM(f, CMDREQ) }
func FuzzDREP(f *testing.F)    { fuzzCM(f, CMDREP) }
func FuzzSIDRREQ(f *testing.F) { fuzzCM(f, CMSIDRREQ) }
func FuzzSIDRREP(f *testing.F) { fuzzCM(f, CMSIDRREP) }
func FuzzLAP(f *testing.F)     { fuzzCM(f, CMLAP) }
func FuzzAPR(f *testing.F)     { fuzzCM(f, CMAPR) }

// FuzzMAD takes a MAD the way QP1 does: header, route and summary.
func FuzzMAD(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(make([]byte, MADSize))
	for _, g := range loadGoldenMADs(f) {
		f.Add(g.mad)
	}
	for _, m := range handMade(f) {
		f.Add(m.mad)
	}
	f.Fuzz(func(t *testing.T, mad []byte) {
		h, err := DecodeMADHeader(mad)
		if len(mad) < MADHeaderSize {
			if err != ErrShortMAD {
				t.Fatalf("%d bytes: %v, want ErrShortMAD", len(mad), err)
			}
		} else {
			want := bytes.Clone(mad[:MADHeaderSize])
			clear(want[madAttrID+2 : madAttrMod])
			if got := h.AppendTo(nil); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%x decodes and encodes to %x, %v, want the same", want, got, err)
			}
		}
		attr, known := h.CM()
		r, ok := CMRoute(mad)
		if ok != (known && len(mad) >= MADSize) || ok && r.Attr != attr {
			t.Fatalf("%d bytes: CMRoute = %+v, %v, want %v, %v as by CM()", len(mad), r, ok, attr, known && len(mad) >= MADSize)
		}
		if line := appendCM(nil, mad); ok != (len(line) > 0) || bytes.ContainsAny(line, "\n\r") {
			t.Fatalf("got the summary %q, want one line for a CM message, else nothing", line)
		}
	})
}

func FuzzIPCMHeader(f *testing.F) {
	f.Add([]byte(nil))
	for _, g := range loadGoldenMADs(f) {
		switch g.attr {
		case "REQ":
			f.Add(g.mad[MADHeaderSize+reqPrivateData:])
		case "SIDR_REQ":
			f.Add(g.mad[MADHeaderSize+sidrReqPrivateData:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeIPCMHeader(b)
		if err != nil {
			if err != ErrIPCMVersion && (err != ErrShortMAD || len(b) >= IPCMHeaderSize) {
				t.Fatalf("%d bytes: got error %v, want %v, or %v if they are too few", len(b), err, ErrIPCMVersion, ErrShortMAD)
			}
			return
		}
		wire := h.AppendTo(nil)
		if again, err := DecodeIPCMHeader(wire); again != h || err != nil || len(wire) != IPCMHeaderSize {
			t.Fatalf("%x decodes to %+v, %v, want %+v", wire, again, err, h)
		}
	})
}
