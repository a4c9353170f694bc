package journal

import (
	"net/netip"
	"testing"
)

func FuzzDecode(f *testing.F) {
	golden := Event{Time: 1_700_000_000_000_000_001, Kind: KindSend, QPN: 0x11, Addr: netip.MustParseAddr("10.0.0.1"), ID: 1 << 63, Len: 4096, Key: 7, Words: "posts SEND"}
	f.Add(golden.AppendTo(nil))
	golden.Addr = netip.MustParseAddr("fd00::1")
	f.Add(golden.AppendTo(nil))
	golden.Addr = netip.Addr{}
	f.Add(golden.AppendTo(nil))
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			return
		}
		_ = e.Kind.String()
		again, err := Decode(append(e.AppendTo(nil), 0, 0))
		if err != nil || again != e {
			t.Errorf("%+v became %+v, %v", e, again, err)
		}
	})
}

// The encoding is that of captures that people have kept.
func TestGolden(t *testing.T) {
	e := Event{Time: 2, Kind: KindDone, QPN: 3, Addr: netip.MustParseAddr("1.2.3.4"), ID: 5, Len: 6, Key: 7, Words: "ok"}
	want := "\x01\x04\x04\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00" +
		"\x06\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x02\x00\x01\x02\x03\x04ok"
	if got := string(e.AppendTo(nil)); got != want {
		t.Errorf("got % x, want % x", got, want)
	}
}
