package capture_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// rewritten rewrites a file of pcap in the other byte order, or with nanoseconds.
func rewritten(file []byte, order binary.ByteOrder, nanos bool) []byte {
	out := slices.Clone(file)
	magic := uint32(0xa1b2c3d4)
	if nanos {
		magic = 0xa1b23c4d
	}
	order.PutUint32(out, magic)
	order.PutUint16(out[4:], 2)
	order.PutUint16(out[6:], 4)
	for at := 8; at < 24; at += 4 {
		order.PutUint32(out[at:], binary.LittleEndian.Uint32(file[at:]))
	}
	for at := 24; at < len(file); {
		n := int(binary.LittleEndian.Uint32(file[at+8:]))
		for i := range 4 {
			v := binary.LittleEndian.Uint32(file[at+4*i:])
			if i == 1 && nanos {
				v *= 1000
			}
			order.PutUint32(out[at+4*i:], v)
		}
		at += 16 + n
	}
	return out
}

func zipped(t *testing.T, file []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// block is a block of pcapng.
func block(order binary.ByteOrder, kind uint32, body ...[]byte) []byte {
	b := slices.Concat(body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	n := uint32(len(b) + 12)
	head := make([]byte, 8)
	order.PutUint32(head, kind)
	order.PutUint32(head[4:], n)
	return slices.Concat(head, b, head[4:8])
}

func words(order binary.ByteOrder, numbers ...uint32) []byte {
	b := make([]byte, 4*len(numbers))
	for i, n := range numbers {
		order.PutUint32(b[4*i:], n)
	}
	return b
}

// All formats have the same frames.
func TestFormats(t *testing.T) {
	file := kernels(t)["rping.pcap"]
	want, err := frames(file)
	if err != nil {
		t.Fatal(err)
	}
	var ng bytes.Buffer
	w, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range want {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, f.Time), CaptureLength: len(f.Data), Length: f.Length}, f.Data); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()

	le, big := binary.ByteOrder(binary.LittleEndian), binary.ByteOrder(binary.BigEndian)
	section := func(o binary.ByteOrder) []byte {
		return block(o, 0x0a0d0d0a, words(o, 0x1a2b3c4d), []byte{1, 0, 0, 0}, words(o, 0xffffffff, 0xffffffff))
	}
	iface := func(o binary.ByteOrder, options ...byte) []byte {
		head := make([]byte, 8)
		o.PutUint16(head, 1)
		return block(o, 1, head, options)
	}
	option := func(o binary.ByteOrder, number uint16, value ...byte) []byte {
		head := make([]byte, 4)
		o.PutUint16(head, number)
		o.PutUint16(head[2:], uint16(len(value)))
		for len(value)%4 != 0 {
			value = append(value, 0)
		}
		return append(head, value...)
	}
	packet := func(o binary.ByteOrder, f capture.Frame, ticks uint64) []byte {
		return block(o, 6, words(o, 0, uint32(ticks>>32), uint32(ticks), uint32(len(f.Data)), uint32(f.Length)), f.Data)
	}
	mixed := section(big) // big-endian, then a little-endian section, with resolutions of their own and blocks between
	mixed = append(mixed, iface(big, option(big, 9, 9)...)...)
	half := len(want) / 2
	for _, f := range want[:half] {
		mixed = append(mixed, packet(big, f, uint64(f.Time))...)
		mixed = append(mixed, block(big, 5, words(big, 0, 1, 2))...)
	}
	offset := make([]byte, 8)
	le.PutUint64(offset, 1000)
	mixed = append(mixed, section(le)...)
	mixed = append(mixed, iface(le, slices.Concat(option(le, 9, 0x80|20), option(le, 14, offset...), option(le, 0))...)...)
	for _, f := range want[half:] {
		seconds, part := uint64(f.Time)/1e9-1000, uint64(f.Time)%1e9
		mixed = append(mixed, packet(le, f, seconds<<20|(part<<20+999_999_999)/1e9)...) // rounded up: a tick is a microsecond
	}
	old := append(section(le), iface(le)...)
	for _, f := range want {
		ticks := uint64(f.Time) / 1000
		old = append(old, block(le, 2, []byte{0, 0, 0, 0}, words(le, uint32(ticks>>32), uint32(ticks), uint32(len(f.Data)), uint32(f.Length)), f.Data)...)
	}
	simple := append(section(le), iface(le)...)
	for _, f := range want {
		simple = append(simple, block(le, 3, words(le, uint32(f.Length)), f.Data)...)
	}

	for name, tt := range map[string]struct {
		file  []byte
		exact time.Duration // how exact times are; negative: there are none
	}{
		"pcap": {file, 0}, "pcap, big-endian": {rewritten(file, big, false), 0}, "pcap of nanoseconds": {rewritten(file, le, true), 0},
		"gzip": {zipped(t, file), 0}, "pcapng by gopacket": {ng.Bytes(), 0}, "pcapng in gzip": {zipped(t, ng.Bytes()), 0},
		"pcapng of two sections": {mixed, time.Microsecond}, "pcapng, old blocks": {old, 0}, "pcapng, simple blocks": {simple, -1},
	} {
		got, err := frames(tt.file)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: got %d frames and error %v, want %d", name, len(got), err, len(want))
			continue
		}
		for i, f := range got {
			late := time.Duration(f.Time - want[i].Time)
			if tt.exact < 0 && f.Time == 0 {
				late = 0
			}
			if !bytes.Equal(f.Data, want[i].Data) || f.Length != want[i].Length || f.Number != i+1 || f.Link != capture.LinkEthernet || late.Abs() > max(tt.exact, 0) {
				t.Errorf("%s: frame %d: got %d of %d bytes, number %d, link %d, %v late", name, i+1, len(f.Data), f.Length, f.Number, f.Link, late)
			}
		}
		// Cut anywhere, the file has the frames before the cut, and says that it was cut.
		if name == "gzip" || name == "pcapng in gzip" {
			continue
		}
		for n := 1; n < len(tt.file); n += 7 {
			part, err := frames(tt.file[:n])
			if len(part) > len(want) || err != nil && !errors.Is(err, capture.ErrCut) && !errors.Is(err, capture.ErrFormat) {
				t.Fatalf("%s, cut to %d bytes: got %d frames and error %v", name, n, len(part), err)
			}
			if err == nil && len(part) == len(want) {
				t.Errorf("%s, cut to %d bytes: got all frames", name, n)
			}
		}
	}
	if got, err := frames(zipped(t, file)[:400]); !errors.Is(err, capture.ErrCut) || len(got) == 0 {
		t.Errorf("gzip, cut: got %d frames and error %v, want some and %v", len(got), err, capture.ErrCut)
	}
}

// A file that is no capture is refused, and a length that promises much takes no memory.
func TestDamaged(t *testing.T) {
	le := binary.ByteOrder(binary.LittleEndian)
	head := kernels(t)["pad.pcap"][:24]
	for name, file := range map[string][]byte{
		"nothing": nil, "text": []byte("hello, world"), "a bad gzip": {0x1f, 0x8b, 1, 2, 3, 4}, "half a header": head[:20],
		"a frame of 4 GB":   slices.Concat(head, words(le, 0, 0, 0xffffffff, 0xffffffff)),
		"a frame of 16 MB":  slices.Concat(head, words(le, 0, 0, 16<<20, 16<<20), []byte("short")),
		"a block of 1 byte": slices.Concat(block(le, 0x0a0d0d0a, words(le, 0x1a2b3c4d, 1, 0, 0)), words(le, 6, 1)),
		"no section":        {0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 1, 2, 3, 4},
		"no interface":      slices.Concat(block(le, 0x0a0d0d0a, words(le, 0x1a2b3c4d, 1, 0, 0)), block(le, 6, words(le, 0, 0, 0, 0, 0))),
		"two lengths":       slices.Concat(block(le, 0x0a0d0d0a, words(le, 0x1a2b3c4d, 1, 0, 0)), words(le, 1, 20, 1, 0, 24)),
	} {
		got, err := frames(file)
		if len(got) > 0 || !errors.Is(err, capture.ErrFormat) && !errors.Is(err, capture.ErrCut) {
			t.Errorf("%s: got %d frames and error %v, want %v or %v", name, len(got), err, capture.ErrFormat, capture.ErrCut)
		}
	}
	promise := slices.Concat(head, words(le, 0, 0, 15<<20, 15<<20), []byte("short"))
	allocated := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			if _, err := frames(promise); !errors.Is(err, capture.ErrCut) {
				b.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 2<<20 {
		t.Errorf("a frame that promises 15 MB took %d bytes, want 2 MB at most", allocated)
	}
}

func FuzzReader(f *testing.F) {
	for _, file := range kernels(f) {
		f.Add(file[:min(len(file), 2000)])
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		var d capture.Decoder
		for {
			f, err := r.Next()
			if err != nil {
				if _, again := r.Next(); again != err {
					t.Errorf("got %v, then %v", err, again)
				}
				return
			}
			if f.Length < len(f.Data) {
				t.Errorf("frame %d has %d bytes of %d", f.Number, len(f.Data), f.Length)
			}
			if p, kind := d.Decode(f); kind == capture.KindRoCE {
				p.ICRC()
			}
		}
	})
}

// The frames that the capturing program has lost are counted once, though a file may say several times how many.
func TestReaderLost(t *testing.T) {
	var ng bytes.Buffer
	w, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, lost := range []uint64{3, 10} {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: 60, Length: 60}, make([]byte, 60)); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{PacketsReceived: 5, PacketsDropped: lost}); err != nil {
			t.Fatal(err)
		}
	}
	w.Flush()
	r, err := capture.NewReader(&ng)
	for err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, io.EOF) || r.Lost() != 10 {
		t.Errorf("%d frames lost, %v; want 10", r.Lost(), err)
	}
}
