package rsocket

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// iwarpDevice opens an iWARP device of the loopback interface, with an address that no other process takes.
func iwarpDevice(t testing.TB, i int) (*verbs.Device, netip.Addr) {
	t.Helper()
	pid := os.Getpid()
	addr := netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&127, byte(pid), byte(i)})
	ifis, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range ifis {
		if ifi.Flags&net.FlagLoopback == 0 {
			continue
		}
		d, err := verbs.Open(fmt.Sprintf("iw_%s@%v", ifi.Name, addr))
		if err != nil {
			t.Skipf("no iWARP here: %v", err)
		}
		t.Cleanup(func() { d.Close() })
		return d, addr
	}
	t.Skip("there is no loopback interface")
	panic("unreachable")
}

// iwarpPair connects two rsockets over iWARP.
func iwarpPair(t testing.TB, dialer, listener Config) (x, y *Conn) {
	t.Helper()
	a, _ := iwarpDevice(t, 61)
	b, at := iwarpDevice(t, 62)
	lc := ListenConfig{Config: listener, Devices: []*verbs.Device{b}}
	l, err := lc.Listen(context.Background(), "rsocket", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := Dialer{Config: dialer, Devices: []*verbs.Device{a}}
	c, err := d.Dial("rsocket", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		other.Close()
	})
	return c.(*Conn), other.(*Conn)
}

// Streams of messages of all sizes go both ways at a time, with queues and rings as short as there are and as the
// default has them.
func TestIWARPStream(t *testing.T) {
	short := Config{SendBuffer: minBuffer, RecvBuffer: minBuffer, Depth: minDepth}
	for _, tt := range []struct {
		name string
		x, y Config
		n    int
	}{
		{"default", Config{}, Config{}, 8 << 20},
		{"short", short, short, 256 << 10},
		{"short to default", short, Config{}, 256 << 10},
		{"default to short", Config{}, short, 256 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x, y := iwarpPair(t, tt.x, tt.y)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			errs := make(chan error, 4)
			for i, way := range [][2]*Conn{{x, y}, {y, x}} {
				sent := make(chan [sha256.Size]byte, 1)
				go func() {
					r := rand.New(rand.NewPCG(seed, uint64(i)))
					b := make([]byte, tt.n)
					for i := range b {
						b[i] = byte(r.Uint32())
					}
					sent <- sha256.Sum256(b)
					var err error
					for len(b) > 0 && err == nil {
						m := min(len(b), 1+r.IntN(1<<r.IntN(18)))
						_, err = way[0].Write(b[:m])
						b = b[m:]
					}
					errs <- errors.Join(err, way[0].CloseWrite())
				}()
				go func() {
					b, err := io.ReadAll(way[1])
					if want := <-sent; err == nil && sha256.Sum256(b) != want {
						err = fmt.Errorf("%d bytes came of %d, others than were sent", len(b), tt.n)
					}
					errs <- err
				}()
			}
			for range 4 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// WriteAt is without a word over iWARP too, and the entry that makes it possible has one.
func TestIWARPMap(t *testing.T) {
	x, y := iwarpPair(t, Config{Maps: 1}, Config{})
	m, err := y.Map(100, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := y.Write([]byte("mapped")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 6)
	if _, err := io.ReadFull(x, b); err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt([]byte("beside"), 1010); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Write([]byte("stream")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(y, b); err != nil || string(b) != "stream" {
		t.Fatalf("%q, %v", b, err)
	}
	if got := string(m.Bytes()[10:16]); got != "beside" {
		t.Errorf("the mapping has %q, want %q", got, "beside")
	}
}

// wordPeer is a peer that speaks librdmacm's form for iWARP by plain verbs: receives of 4 bytes, as many as it gives
// credits, and words as SENDs.
type wordPeer struct {
	*rawPeer
	order binary.ByteOrder
	words *verbs.MR
	next  int // receive
}

const wordPeerCredits = 10

func wordDial(t *testing.T, cfg Config, bigEndian bool) (*wordPeer, *Conn) {
	t.Helper()
	a, _ := iwarpDevice(t, 63)
	b, at := iwarpDevice(t, 64)
	lc := ListenConfig{Config: cfg, Devices: []*verbs.Device{b}}
	l, err := lc.Listen(context.Background(), "rsocket", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &wordPeer{rawPeer: &rawPeer{}, order: order(bigEndian)}
	private := make([]byte, helloSize)
	config := &rdmacm.Config{PrivateData: private, Setup: func(c *rdmacm.Conn) (err error) {
		if p.ring, err = c.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
			return err
		}
		appendHello(private[:0], &parameters{
			bigEndian: bigEndian, credits: wordPeerCredits, sgl: extent{p.ring.Remote(0), sglSize}, data: extent{p.ring.Remote(4096), 4096},
		})
		if p.words, err = c.AllocMR(4*wordPeerCredits+8, verbs.AccessLocalWrite); err != nil {
			return err
		}
		for i := range wordPeerCredits {
			if err := c.QP().PostOneRecv(uint64(i), p.words.SGE(4*i, 4)); err != nil {
				return err
			}
		}
		return nil
	}}
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	if p.Conn, err = (&rdmacm.Dialer{Devices: []*verbs.Device{a}}).Dial(ctx, netip.MustParseAddrPort(l.Addr().String()), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if p.theirs, err = parseHello(p.PrivateData()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return p, c.(*Conn)
}

// hears takes the next word, which must be that.
func (p *wordPeer) hears(t *testing.T, want uint32) {
	t.Helper()
	at := 4 * (p.next % wordPeerCredits)
	p.hearsAny(t)
	if got := p.order.Uint32(p.words.Bytes()[at:]); got != want {
		t.Fatalf("got word %#x, want %#x", got, want)
	}
}

// hearsAny takes the next word.
func (p *wordPeer) hearsAny(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := p.RecvCQ().Wait(ctx, wcs[:]); err != nil {
		t.Fatal(err)
	}
	wc := &wcs[0]
	if wc.Status != verbs.WCSuccess || wc.Op != verbs.WCRecv || wc.Flags != 0 || wc.ByteLen != 4 || wc.ID != uint64(p.next) {
		t.Fatalf("got completion %+v, want a SEND of 4 bytes for receive %d", *wc, p.next)
	}
	p.next++
}

// writes puts bytes into the memory of the other end, and says so.
func (p *wordPeer) writes(t *testing.T, b []byte, to verbs.RemoteAddr, msg uint32) {
	t.Helper()
	mr, err := p.RegMR(b, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.post(t, verbs.SendWR{Op: verbs.OpRDMAWrite, Remote: to, SGList: []verbs.SGE{mr.SGE(0, len(b))}})
	p.says(t, msg)
}

func (p *wordPeer) says(t *testing.T, msg uint32) {
	t.Helper()
	mr, err := p.AllocMR(wordSize, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.order.PutUint32(mr.Bytes(), msg)
	p.post(t, verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{mr.SGE(0, wordSize)}})
}

// Over iWARP words are SENDs of 4 bytes behind the WRITEs, in the peer's order: librdmacm's form.
func TestIWARPWire(t *testing.T) {
	for _, bigEndian := range []bool{false, true} {
		t.Run(fmt.Sprintf("big-endian %v", bigEndian), func(t *testing.T) {
			p, c := wordDial(t, Config{RecvBuffer: minBuffer}, bigEndian)
			if _, err := c.Write([]byte("to the peer")); err != nil {
				t.Fatal(err)
			}
			p.hears(t, word(kindData, 11))
			if got := string(p.ring.Bytes()[4096:][:11]); got != "to the peer" {
				t.Errorf("the WRITE before the word has brought %q", got)
			}
			half := make([]byte, minBuffer/2)
			for i := range half {
				half[i] = byte(i * 7)
			}
			got := make([]byte, len(half))
			for i := range 2 {
				p.writes(t, half, p.theirs.data.remote.Add(i*len(half)), word(kindData, uint32(len(half))))
				c.mu.Lock()
				spoke := c.control.wrs[1].InlineData != nil
				c.mu.Unlock()
				if _, err := io.ReadFull(c, got); err != nil || string(got) != string(half) || spoke {
					t.Fatalf("read other bytes than came, %v, or the peer hears (%v) of memory that it does not need yet", err, spoke)
				}
			}
			p.hears(t, word(kindSGL, 2+DefaultDepth)) // half of the ring is free again, and the peer has used it all up
			entry := make([]byte, sgeSize)
			putSGE(entry, p.order, extent{p.theirs.data.remote, minBuffer / 2})
			if got := p.ring.Bytes()[sgeSize:][:sgeSize]; string(got) != string(entry) {
				t.Errorf("the target SGL has %x, want %x", got, entry)
			}
			p.says(t, word(kindControl, controlShutdown))
			if _, err := c.Read(got); err != io.EOF {
				t.Errorf("read after the peer's end: %v, want %v", err, io.EOF)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			p.hears(t, word(kindControl, controlDisconnect))
		})
	}
}

// A SEND that is no word of 4 bytes breaks the protocol there.
func TestIWARPPeerBreaksProtocol(t *testing.T) {
	for name, misdeed := range map[string]func(t *testing.T, p *wordPeer){
		"immediate data": func(t *testing.T, p *wordPeer) {
			p.post(t, verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Imm: word(kindData, 1)})
		},
		"a short word": func(t *testing.T, p *wordPeer) {
			p.post(t, verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{p.words.SGE(0, 3)}})
		},
		"no word": func(t *testing.T, p *wordPeer) { p.post(t, verbs.SendWR{Op: verbs.OpSend}) },
	} {
		t.Run(name, func(t *testing.T) {
			p, c := wordDial(t, Config{}, false)
			c.SetReadDeadline(time.Now().Add(rdmatest.Patience))
			misdeed(t, p)
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, errProtocol) {
				t.Errorf("got error %v, want %v for %v", err, syscall.ECONNRESET, errProtocol)
			}
		})
	}
}

// A message that finds no receive ends an iWARP connection. So this end leaves a peer that has as many receives as it
// gives credits half of them for words that are not of data.
func TestIWARPReserve(t *testing.T) {
	p, c := wordDial(t, Config{}, false)
	for range wordPeerCredits / 2 {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	wantFull := func(messages int) {
		t.Helper()
		c.mu.Lock()
		defer c.mu.Unlock()
		if ok, err := c.canWrite(); ok || err != nil {
			t.Errorf("after %d messages for %d receives: may write %v, %v; want to wait", messages, wordPeerCredits, ok, err)
		}
	}
	wantFull(wordPeerCredits / 2)
	for range wordPeerCredits / 2 {
		p.hears(t, word(kindData, 1))
	}
	p.says(t, word(kindSGL, wordPeerCredits+1))
	if _, err := c.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	wantFull(wordPeerCredits/2 + 1)
	p.hears(t, word(kindData, 1))
}

// An end that only writes takes the words of its grants all the same: they use receives up. So they come beside as many
// messages of data as the peer may send.
func TestIWARPGrantsUnread(t *testing.T) {
	p, c := wordDial(t, Config{}, false)
	const many = 1000 // messages, so that no lack of them has the writer poll
	p.says(t, word(kindSGL, many))
	for knows := false; !knows; runtime.Gosched() {
		c.mu.Lock()
		c.progress()
		knows = c.limit > wordPeerCredits
		c.mu.Unlock()
	}
	if _, err := c.Write(make([]byte, 4096)); err != nil { // the first target
		t.Fatal(err)
	}
	p.hears(t, word(kindData, 4096))
	p.repost(t)
	for range DefaultDepth {
		p.says(t, word(kindData, 1))
	}
	const grants = spareReceives + 10
	for i := range grants {
		entry := make([]byte, sgeSize)
		putSGE(entry, p.order, extent{p.ring.Remote(4096), 1})
		slot := (1 + i) % sglSize
		p.writes(t, entry, p.theirs.sgl.remote.Add(slot*sgeSize), word(kindSGL, many))
		for loadSGE(c.in, slot*sgeSize).length == 0 && c.qp.Err() == nil { // the device places the entry
			runtime.Gosched()
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatalf("after %d grants: %v", i, err)
		}
		p.hearsData(t)
		p.repost(t)
	}
}

// hearsData waits for the word of one byte. Words of credits come before it.
func (p *wordPeer) hearsData(t *testing.T) {
	t.Helper()
	for {
		at := 4 * (p.next % wordPeerCredits)
		p.hearsAny(t)
		if p.order.Uint32(p.words.Bytes()[at:]) == word(kindData, 1) {
			return
		}
		p.repost(t)
	}
}

// repost posts the receive of the word before again.
func (p *wordPeer) repost(t *testing.T) {
	t.Helper()
	at := (p.next - 1) % wordPeerCredits
	if err := p.QP().PostOneRecv(uint64(p.next-1+wordPeerCredits), p.words.SGE(4*at, 4)); err != nil {
		t.Fatal(err)
	}
}

// post posts a work request, and waits until it is done.
func (p *wordPeer) post(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	p.rawPeer.post(t, wr)
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := p.SendCQ().Wait(ctx, wcs[:]); err != nil {
		t.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		t.Fatal(err)
	}
}
