package capture_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// A live capture shows packets to RoCE's port once, and no others.
func TestLive(t *testing.T) {
	l, err := capture.OpenLive("lo")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Follow([]uint16{7000}); err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.7.7.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	mark := append(one(t)[14+28:], byte(os.Getpid())) // not RoCE for whoever listens, since its ICRC is wrong
	for _, port := range []uint16{53, 4791, 53, 4791} {
		if _, err := c.WriteToUDPAddrPort(mark, netip.AddrPortFrom(netip.MustParseAddr("127.7.7.2"), port)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	var d capture.Decoder
	var last int
	for seen := 0; seen < 2; {
		f, err := l.Next()
		if errors.Is(err, capture.ErrQuiet) {
			if t.Context().Err() != nil {
				t.Fatal("the packets have not come")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p, kind := d.Decode(f)
		if f.Number <= last || f.Time == 0 || f.Link != capture.LinkEthernet {
			t.Errorf("frame %+v, behind frame %d", f, last)
		}
		last = f.Number
		if p.Dst.Addr() != netip.MustParseAddr("127.7.7.2") || kind == capture.KindICMP {
			continue
		}
		if kind != capture.KindRoCE || !bytes.Equal(p.Datagram, mark) {
			t.Errorf("kind %d, %x", kind, p.Datagram)
		}
		seen++
	}
	if n := l.Lost(); n != 0 {
		t.Errorf("%d frames are lost", n)
	}
}

func TestLiveErrors(t *testing.T) {
	if _, err := capture.OpenLive("no-such-interface"); err == nil {
		t.Error("an interface that is not there can be opened")
	}
}
