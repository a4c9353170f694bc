package rsocket

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// The parameters of an end, byte by byte as struct rs_conn_data of librdmacm has them.
func TestHelloGolden(t *testing.T) {
	h := parameters{
		credits: 384, maps: 3,
		sgl:  extent{verbs.RemoteAddr{VA: 0x1122334455667788, RKey: 0x99aabbcc}, 2},
		data: extent{verbs.RemoteAddr{VA: 0x0102030405060708, RKey: 0x090a0b0c}, 65536},
	}
	want, err := hex.DecodeString("01" + "02" + "0180" + "000000" + "03" +
		"1122334455667788" + "99aabbcc" + "00000002" +
		"0102030405060708" + "090a0b0c" + "00010000")
	if err != nil {
		t.Fatal(err)
	}
	got := appendHello(nil, &h)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	back, err := parseHello(append(got, make([]byte, 16)...)) // the field is longer than the message
	if err != nil || back != h {
		t.Errorf("read back: %+v, %v, want %+v", back, err, h)
	}
	got[1] = flagBigEndian // of a peer without an iomap
	back, err = parseHello(got)
	if err != nil || !back.bigEndian || back.maps != 0 {
		t.Errorf("flags 1: %+v, %v, want big-endian and no maps", back, err)
	}
}

func TestHelloRefused(t *testing.T) {
	good := appendHello(nil, &parameters{sgl: extent{length: 2}})
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"cut short":     good[:helloSize-1],
		"zeros":         make([]byte, 56),
		"version 2":     append([]byte{2}, good[1:]...),
		"an SGL of one": appendHello(nil, &parameters{sgl: extent{length: 1}}),
		"a huge SGL":    appendHello(nil, &parameters{sgl: extent{length: maxSGL + 1}}),
		"a negative":    appendHello(nil, &parameters{sgl: extent{length: 1 << 31}}),
	} {
		if _, err := parseHello(b); !errors.Is(err, errProtocol) {
			t.Errorf("%s: got error %v, want %v", name, err, errProtocol)
		}
	}
}

// The size of an iomap is in a byte, with a step from 128 on.
func TestScale(t *testing.T) {
	for _, c := range []struct {
		n    int
		b    byte
		back int
	}{{0, 0, 0}, {1, 1, 1}, {128, 128, 128}, {256, 129, 256}, {300, 129, 256}, {512, 130, 512}} {
		if got := toScale(c.n); got != c.b {
			t.Errorf("toScale(%d) is %d, want %d", c.n, got, c.b)
		}
		if got := fromScale(c.b); got != c.back {
			t.Errorf("fromScale(%d) is %d, want %d", c.b, got, c.back)
		}
	}
}

func TestIomapEntry(t *testing.T) {
	e := extent{verbs.RemoteAddr{VA: 0x1122334455667788, RKey: 0x99aabbcc}, 7}
	b := make([]byte, iomapEntrySize)
	putIomap(b, binary.LittleEndian, 5, e)
	if got, want := hex.EncodeToString(b), "0500000000000000"+"8877665544332211"+"ccbbaa99"+"07000000"; got != want {
		t.Errorf("little-endian: %s, want %s", got, want)
	}
	putIomap(b, order(true), 5, e)
	if got, want := hex.EncodeToString(b), "0000000000000005"+"1122334455667788"+"99aabbcc"+"00000007"; got != want {
		t.Errorf("big-endian: %s, want %s", got, want)
	}
}

// Whatever is accepted is written the same way again.
func FuzzHello(f *testing.F) {
	f.Add(appendHello(nil, &parameters{credits: 1, maps: 2, sgl: extent{length: 2}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		again, err := parseHello(appendHello(nil, &h))
		if err != nil || again != h {
			t.Errorf("%x: %+v, then %+v, %v, want the same", b, h, again, err)
		}
	})
}
