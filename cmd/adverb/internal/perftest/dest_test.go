package perftest

import (
	"encoding/hex"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

var sampleDest = dest{lid: 0x1f, outs: 0x10, qpn: 0x11, psn: 0xabcdef, rkey: 0x1234, vaddr: 0x7f0123456789,
	gid: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 98, 14: 0, 15: 3}, srqn: 0x123456}

// The bytes are those that perftest 4.5-0.20 sends: by KEY_PRINT_FMT and KEY_PRINT_FMT_GID, and with
// rdma_cm struct pingpong_dest in network order.
func TestDestGolden(t *testing.T) {
	const head = "001f:0010:000011:abcdef:00001234:00007f0123456789:"
	for _, tt := range []struct {
		enc  encoding
		want string
	}{
		{textWithGID, head + "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:62:00:03:00123456:\x00"},
		{textWithoutGID, head + "00123456\x00"},
		{binaryStruct, "\x00\x00\x00\x1f\x00\x00\x00\x10\x00\x00\x00\x11\x00\xab\xcd\xef\x00\x00\x12\x34\x00\x00\x00\x00" +
			"\x00\x00\x7f\x01\x23\x45\x67\x89\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x0a\x62\x00\x03\x00\x12\x34\x56\x00\x00\x00\x00"},
	} {
		got := sampleDest.appendTo(nil, tt.enc)
		if string(got) != tt.want || len(got) != tt.enc.size() {
			t.Errorf("encoding %d: got %d bytes\n%s\nwant %d\n%s", tt.enc, len(got), hex.Dump(got), tt.enc.size(), hex.Dump([]byte(tt.want)))
		}
		want := sampleDest
		if tt.enc == textWithoutGID {
			want.gid = verbs.GID{}
		}
		if d, err := decodeDest(got, tt.enc); err != nil || d != want {
			t.Errorf("encoding %d: got %+v, %v; want %+v", tt.enc, d, err, want)
		}
	}
}

func TestDestRefused(t *testing.T) {
	good := string(sampleDest.appendTo(nil, textWithGID))
	for name, bad := range map[string]string{
		"short":         good[:50],
		"no hex":        "x" + good[1:],
		"few fields":    good[:60] + good[59:59] + string(make([]byte, textSize-60)),
		"large PSN":     "001f:0010:000011:fabcdef" + good[23:textSize-1],
		"pingpong's":    "0000:000011:abcdef:00000000000000000000ffff0a620003\x00" + string(make([]byte, textSize-52)),
		"large SRQ":     good[:98] + "01123456:\x00",
		"no SRQ":        good[:98] + "x0123456:\x00",
		"long GID byte": good[:50] + "0fff" + good[53:textSize-1] + "\x00",
	} {
		if d, err := decodeDest([]byte(bad), textWithGID); err == nil {
			t.Errorf("%s: got %+v, want an error", name, d)
		}
	}
}

func FuzzDecodeDest(f *testing.F) {
	for _, e := range []encoding{textWithGID, textWithoutGID, binaryStruct} {
		f.Add(sampleDest.appendTo(nil, e), uint8(e))
	}
	f.Fuzz(func(t *testing.T, b []byte, e uint8) {
		enc := encoding(e % 3)
		d, err := decodeDest(b, enc)
		if err != nil {
			return
		}
		if again, err := decodeDest(d.appendTo(nil, enc), enc); d.outs <= 0xffff && (err != nil || again != d) {
			t.Errorf("got %+v, %v from the encoding of %+v, want the same", again, err, d)
		}
	})
}
