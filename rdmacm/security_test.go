package rdmacm_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

var (
	psk      = bytes.Repeat([]byte{1}, 32)
	otherPSK = bytes.Repeat([]byte{2}, 32)
)

// listenSecured listens on b with packet security.
func (p pair) listenSecured(t *testing.T, s *rdmacm.Security) *rdmacm.Listener {
	t.Helper()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{p.b}, Security: s}).Listen(addr(t, p.b, false, 7471))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// secCount returns one of a connection's counters.
func secCount(t *testing.T, c *rdmacm.Conn, name string) uint64 {
	t.Helper()
	cs, err := c.QP().Counters()
	if err != nil {
		t.Fatal(err)
	}
	n, ok := cs.Get(name)
	if !ok {
		t.Fatalf("there is no counter %s", name)
	}
	return n
}

// sendText sends a message from one end, and checks that it arrives.
func sendText(t *testing.T, from, to *rdmacm.Conn, text string) {
	t.Helper()
	src, err := from.AllocMR(64, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := to.AllocMR(64, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{dst.SGE(0, 64)}}}); err != nil {
		t.Fatal(err)
	}
	n := copy(src.Bytes(), text)
	if _, err := from.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{src.SGE(0, n)}, Flags: verbs.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	var wcs [1]verbs.WC
	if _, err := to.RecvCQ().Wait(patience(t), wcs[:]); err != nil || wcs[0].Err() != nil {
		t.Fatal(err, wcs[0].Err())
	}
	if got := string(dst.Bytes()[:wcs[0].ByteLen]); got != text {
		t.Fatalf("%q arrived, want %q", got, text)
	}
}

// TestSecurity: two ends with one key connect, on a bad network too, and exchange their programs' private data.
func TestSecurity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, rdmatest.Config{Seed: 3, Loss: 0.05, Duplicate: 0.05, Reorder: 0.05})
		l := p.listenSecured(t, &rdmacm.Security{PSK: psk})
		done := accept(t, l, &rdmacm.Config{PrivateData: []byte("from listener")})
		c, err := p.dial(t, l.Addr(), &rdmacm.Config{PrivateData: []byte("from caller"), Security: &rdmacm.Security{PSK: psk}})
		if err != nil {
			t.Fatal(err)
		}
		a := <-done
		if a.err != nil {
			t.Fatal(a.err)
		}
		t.Cleanup(func() { a.conn.Close() })
		if !bytes.HasPrefix(c.PrivateData(), []byte("from listener\x00")) || len(c.PrivateData()) != rdmacm.SecuredAcceptData {
			t.Errorf("the caller has %d bytes, %q, of the listener, want \"from listener\\x00\" and zeroes up to %d bytes", len(c.PrivateData()), c.PrivateData(), rdmacm.SecuredAcceptData)
		}
		if got := a.req.PrivateData(); !bytes.HasPrefix(got, []byte("from caller\x00")) || len(got) != rdmacm.SecuredConnectData {
			t.Errorf("the listener has %d bytes, %q, of the caller, want \"from caller\\x00\" and zeroes up to %d bytes", len(got), got, rdmacm.SecuredConnectData)
		}
		for _, e := range []*rdmacm.Conn{c, a.conn} { // nothing was posted: see verbs.QP.PeerRepeatsSelectively
			if secCount(t, e, "sent_pkts") == 0 {
				t.Error("an end has sent no packet, want one that says what a software device understands")
			}
		}
		sendText(t, c, a.conn, "over there")
		sendText(t, a.conn, c, "and back")
		for _, e := range []*rdmacm.Conn{c, a.conn} {
			if n := secCount(t, e, "sec_plain_pkts") + secCount(t, e, "sec_forged_pkts") + secCount(t, e, "sec_no_key_pkts"); n != 0 {
				t.Errorf("%d packets were dropped between ends with one key, want none", n)
			}
		}
	})
}

// Ends that do not agree are not connected, and each says why.
func TestSecurityDisagreement(t *testing.T) {
	with := func(key []byte) *rdmacm.Security { return &rdmacm.Security{PSK: key} }
	for _, tt := range []struct {
		name         string
		dial, listen *rdmacm.Security
		because      string
	}{
		{name: "other keys", dial: with(psk), listen: with(otherPSK), because: "the listener has another pre-shared key"},
		{name: "caller has none", dial: nil, listen: with(psk), because: "the listener demands packet security: set Config.Security"},
		{name: "listener has none", dial: with(psk), listen: nil, because: "the peer does not offer packet security"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t)
				l := p.listenSecured(t, tt.listen)
				done := accept(t, l, nil)
				_, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: tt.dial})
				if !errors.Is(err, rdmacm.ErrSecurity) || !strings.Contains(err.Error(), tt.because) {
					t.Errorf("got %v, want %v because %s", err, rdmacm.ErrSecurity, tt.because)
				}
				if tt.listen == nil { // the program has seen the request, and its Accept fails
					if a := <-done; a.err == nil {
						t.Error("Accept has succeeded")
						a.conn.Close()
					}
				}
			})
		})
	}
}

// A listener whose security is optional takes both kinds of peers, but none with another key.
func TestSecurityOptional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		l := p.listenSecured(t, &rdmacm.Security{PSK: psk, Optional: true})
		for _, s := range []*rdmacm.Security{nil, {PSK: psk}} {
			done := accept(t, l, nil)
			c, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: s})
			if err != nil {
				t.Fatal(err)
			}
			a := <-done
			if a.err != nil {
				t.Fatal(a.err)
			}
			sendText(t, c, a.conn, "over there")
			c.Close()
			a.conn.Close()
		}
		if _, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: &rdmacm.Security{PSK: otherPSK}}); !errors.Is(err, rdmacm.ErrSecurity) {
			t.Errorf("another key: got %v, want %v", err, rdmacm.ErrSecurity)
		}
	})
}

// meddler changes the messages of the connection manager that a link sends, as somebody on the path does.
type meddler struct {
	link.Link
	mu     *sync.Mutex
	change func(attr wire.CMAttr, data []byte)
}

func (m meddler) Send(batch []link.Datagram) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range batch {
		d := &batch[i]
		var p wire.Packet
		if d.SegmentSize != 0 && d.Segments() > 1 || p.Decode(d.Payload) != nil || p.DestQP != wire.GSIQPN || len(p.Payload) < wire.MADSize {
			continue
		}
		h, err := wire.DecodeMADHeader(p.Payload)
		if err != nil {
			continue
		}
		m.change(wire.CMAttr(h.AttrID), p.Payload[wire.MADHeaderSize:])
		flow := wire.NewFlow(d.Src, d.Dst)
		flow.Seal(0, d.Payload)
	}
	return m.Link.Send(batch)
}

// TestSecurityStripped: somebody on the path takes the security out of a message, or changes it. There is
// then no connection, neither with security nor without.
func TestSecurityStripped(t *testing.T) {
	const reqPrivate, repPrivate, rtuPrivate = 140 + wire.IPCMHeaderSize, 36, 8
	for name, change := range map[string]func(attr wire.CMAttr, data []byte){
		"REQ without": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMREQ {
				clear(data[reqPrivate:])
			}
		},
		"REQ of another version": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMREQ {
				data[reqPrivate+3] ^= 1
			}
		},
		"REP without": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMREP {
				clear(data[repPrivate:])
			}
		},
		"another key in the REP": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMREP {
				data[repPrivate+10] ^= 1
			}
		},
		"RTU without": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMRTU {
				clear(data[rtuPrivate:])
			}
		},
		"RTU lost": func(attr wire.CMAttr, data []byte) {
			if attr == wire.CMRTU {
				clear(data) // so that it is about no connection
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				tap := func(l link.Link) link.Link { return meddler{l, &mu, change} }
				net := sim.New(sim.Config{})
				device := func(i int) *verbs.Device {
					at := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
					d, err := hca.Open(net.Netdev(fmt.Sprintf("sim%d", i), at), hca.Config{Middleware: []link.Middleware{tap}})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { d.Close() })
					return verbs.NewDevice(d)
				}
				p := pair{nil, device(1), device(2)}
				l := p.listenSecured(t, &rdmacm.Security{PSK: psk})
				done := accept(t, l, nil)
				c, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: &rdmacm.Security{PSK: psk}})
				if strings.HasPrefix(name, "RTU") { // the caller cannot know yet
					if name == "RTU lost" && err == nil {
						err = c.Disconnect() // which stands in for it, without the confirmation
					}
					a := <-done
					if !errors.Is(a.err, rdmacm.ErrSecurity) {
						t.Errorf("Accept: got %v, want %v", a.err, rdmacm.ErrSecurity)
					}
					if a.err == nil {
						a.conn.Close()
					}
					if err == nil {
						<-c.Disconnected()
					}
					return
				}
				if !errors.Is(err, rdmacm.ErrSecurity) {
					t.Errorf("Dial: got %v, want %v", err, rdmacm.ErrSecurity)
				}
				if name == "REQ of another version" && !strings.Contains(err.Error(), "has another version") {
					t.Errorf("Dial: got %v, want that the listener has another version", err)
				}
			})
		})
	}
}

// The errors of SetSecurity.
func TestSecurityMisuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		l := p.listen(t, addr(t, p.b, false, 7471))
		for what, s := range map[string]*rdmacm.Security{
			"short":    {PSK: make([]byte, 15)},
			"optional": {PSK: psk, Optional: true},
		} {
			if _, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: s}); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: got %v, want %v", what, err, verbs.ErrInvalid)
			}
		}
		if _, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: &rdmacm.Security{PSK: psk}, PrivateData: make([]byte, 13)}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("13 bytes of private data: got %v, want %v", err, verbs.ErrInvalid)
		}
		done := accept(t, l, &rdmacm.Config{Security: &rdmacm.Security{PSK: psk}})
		if _, err := p.dial(t, l.Addr(), nil); err == nil {
			t.Error("a request was accepted with Config.Security")
		}
		if a := <-done; !errors.Is(a.err, verbs.ErrInvalid) {
			t.Errorf("Config.Security of Accept: got %v, want %v", a.err, verbs.ErrInvalid)
		}
		id, err := rdmacm.NewID(rdmacm.NewEventChannel(p.a), rdmacm.PortSpaceUDP)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		if err := id.SetSecurity(&rdmacm.Security{PSK: psk}); !errors.Is(err, verbs.ErrUnsupported) {
			t.Errorf("UD: got %v, want %v", err, verbs.ErrUnsupported)
		}
	})
}

// The private data of an answer has room for so much, and no more: nothing is cut off.
func TestSecurityAnswerRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		l := p.listenSecured(t, &rdmacm.Security{PSK: psk})
		for _, n := range []int{rdmacm.SecuredAcceptData + 1, rdmacm.SecuredAcceptData} {
			said := bytes.Repeat([]byte{7}, n)
			done := accept(t, l, &rdmacm.Config{PrivateData: said})
			c, err := p.dial(t, l.Addr(), &rdmacm.Config{Security: &rdmacm.Security{PSK: psk}})
			a := <-done
			if n > rdmacm.SecuredAcceptData {
				if err == nil || !errors.Is(a.err, verbs.ErrInvalid) {
					t.Errorf("%d bytes: Dial gives %v, and Accept %v, want an error and %v", n, err, a.err, verbs.ErrInvalid)
				}
				continue
			}
			if err != nil || a.err != nil {
				t.Fatalf("%d bytes: %v, %v, want a connection", n, err, a.err)
			}
			if !bytes.Equal(c.PrivateData(), said) {
				t.Errorf("the caller has %x of the listener, want %x", c.PrivateData(), said)
			}
			c.Close()
			a.conn.Close()
		}
	})
}

// A program may destroy the QP of an ID that has accepted, as one does that is about to close it. The peer's last
// message, which comes then, finds no QP.
func TestSecurityWithoutQP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		a, b := newScript(t, p.a), newScript(t, p.b)
		l := b.id(rdmacm.PortSpaceTCP)
		b.ok(l.BindAddr(addr(t, p.b, false, 7471)))
		b.ok(l.SetSecurity(&rdmacm.Security{PSK: psk}))
		b.ok(l.Listen(0))
		x := a.routed(rdmacm.PortSpaceTCP, l.LocalAddr())
		a.ok(x.SetSecurity(&rdmacm.Security{PSK: psk}))
		a.ok(x.CreateQP(nil, smallQP))
		a.ok(x.Connect(nil))
		y := b.next(rdmacm.EventConnectRequest).ID
		b.ok(y.CreateQP(nil, smallQP))
		p.net.Partition(p.a, p.b) // so that the answer comes when the QP is gone
		b.ok(y.Accept(nil))
		b.ok(y.DestroyQP())
		p.net.Heal(p.a, p.b)
		a.next(rdmacm.EventEstablished)
		b.next(rdmacm.EventEstablished)
		b.ok(y.Close())
	})
}
