package host

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"
)

var messages = []message{
	{kind: whoMessage, from: 7, nonce: 1 << 63},
	{kind: meMessage, from: numBlocks - 1, nonce: 42},
	{kind: datagramMessage, from: 1, addr: netip.MustParseAddr("127.0.0.1"), source: netip.MustParseAddrPort("10.0.0.9:49152"), class: 0xb9, payload: []byte("payload")},
	{kind: datagramMessage, from: 1, addr: netip.MustParseAddr("fe80::1"), source: netip.MustParseAddrPort("[2001:db8::9]:65535"), label: 0xfedcb, payload: []byte{}},
	{kind: hereMessage, from: 5, nonce: 9, addr: netip.MustParseAddr("::1"), index: 4095, blocks: []uint32{5, 1, numBlocks - 1}},
	{kind: hereMessage, from: 5, addr: netip.MustParseAddr("127.0.0.1")},
}

func TestMessage(t *testing.T) {
	for _, want := range messages {
		var got message
		if err := got.decode(want.appendTo(nil)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v comes back as %+v, %v, want the same", want, got, err)
		}
	}
}

func TestMessageMalformed(t *testing.T) {
	datagram := messages[2].appendTo(nil)
	here := messages[4].appendTo(nil)
	change := func(b []byte, i int, v byte) []byte {
		b = bytes.Clone(b)
		b[i] = v
		return b
	}
	for name, b := range map[string][]byte{
		"empty":              {},
		"short":              datagram[:messageHeader-1],
		"other version":      change(datagram, 1, messageVersion+1),
		"no such kind":       change(datagram, 0, 0),
		"unknown kind":       change(datagram, 0, 5),
		"no such block":      change(datagram, 2, 0x10),
		"short datagram":     datagram[:datagramHeader-1],
		"long datagram":      append(bytes.Clone(datagram), make([]byte, maxDatagram)...),
		"short here":         here[:hereHeader-1],
		"half a block":       here[:len(here)-1],
		"here with no block": change(here, len(here)-2, 0x10),
		"too many blocks":    append(bytes.Clone(here), make([]byte, maxMessage)...),
	} {
		var m message
		if m.decode(b) == nil {
			t.Errorf("%s: decoded as %+v, want an error", name, m)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(m.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message
		if m.decode(b) != nil {
			return
		}
		if len(b) > maxMessage || m.from >= numBlocks {
			t.Fatalf("%d bytes are decoded as %+v, want an error: more than %d, or block %d or more", len(b), m, maxMessage, numBlocks)
		}
		// Encoded again, a message means the same. Its bytes may differ: IPv4-mapped addresses
		// become IPv4 addresses, and a who or me message may have had more bytes at its end.
		var again message
		if err := again.decode(m.appendTo(nil)); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("encoded and decoded again: %+v, %v; want %+v", again, err, m)
		}
	})
}
