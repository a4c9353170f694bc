//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// TestInboxWithoutLink: the bell of an address without a link is given back with the device.
func TestInboxWithoutLink(t *testing.T) {
	before := handovertest.OpenFiles(t)
	addr := testAddr(88)
	n := shareLoopback(t, addr)
	n.ShareMemory()
	fd, err := n.Inbox(addr).ShareBell()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	handovertest.Await(t, "the files to be closed", func() bool { return handovertest.OpenFiles(t) <= before })
}

// TestMaxWords: a will that is full takes no further words.
func TestMaxWords(t *testing.T) {
	addr := testAddr(89)
	m := join(t, addr)
	defer m.leave()
	m.netdev.LastWords(addr, addr, 0, []byte("first"))
	w := &m.netdev.will
	if w.mem == nil {
		t.Skip("no memfd")
	}
	w.used = maxWords - 1
	for _, text := range []string{"last", "one too many"} {
		m.netdev.LastWords(addr, addr, 0, []byte(text))
	}
	if last := string(w.row(maxWords - 1)[wordsMAD:][:4]); w.used != maxWords || last != "last" {
		t.Errorf("%d rows are used, and the last is %q; want %d and %q", w.used, last, maxWords, "last")
	}
}

// TestMaxCandidates: no more processes are remembered than may become heirs.
func TestMaxCandidates(t *testing.T) {
	s := &steering{link: &Link{netdev: &Netdev{}}}
	for block := range uint32(2 * maxCandidates) {
		s.noteProber(block)
		s.noteProber(0)
	}
	if n := len(s.probers); n != maxCandidates {
		t.Errorf("%d processes are remembered, want %d", n, maxCandidates)
	}
	s.members = []uint32{1000}
	if all := s.candidates(); len(all) != maxCandidates || all[0] != 1000 {
		t.Errorf("%d candidates, the first %d; want %d, and the one that is known first", len(all), all[0], maxCandidates)
	}
}

// TestHereNonce: an answer to no probe does not count. A process that has not received the probe is not at the address.
func TestHereNonce(t *testing.T) {
	s := &steering{nonce: 7, answers: map[int]answer{}, changed: make(chan struct{}, 1)}
	for nonce, want := range map[uint64]int{8: 0, 7: 1} {
		clear(s.answers)
		if s.here(&message{kind: hereMessage, nonce: nonce, from: 5, index: 3}); len(s.answers) != want {
			t.Errorf("to nonce %d: %d answers count, want %d", nonce, len(s.answers), want)
		}
	}
}

// TestProbeFromElsewhere: a probe counts only if it comes from the link's own address, where processes of this user alone
// have sockets.
func TestProbeFromElsewhere(t *testing.T) {
	m := open(t, testAddr(90))
	defer m.leave()
	m.block = m.claim(t)
	l := m.link.(*Link)
	const prober = controlBlock - 3
	var payload [probePayload]byte
	binary.BigEndian.PutUint32(payload[8:], prober)
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: controlBlock << blockBits}, Payload: payload[:]}
	for _, c := range []struct {
		from netip.Addr
		want bool
	}{{testAddr(91), false}, {l.Addr().Addr(), true}} {
		l.steering.probed(&link.Datagram{Src: netip.AddrPortFrom(c.from, 50000), Dst: l.Addr(), Payload: p.AppendTo(nil)}, 0)
		noted := false
		for _, b := range l.steering.candidates() {
			noted = noted || b == prober
		}
		if noted != c.want {
			t.Errorf("a probe from %v is taken for one of a process here: %v, want %v", c.from, noted, c.want)
		}
	}
}

// TestHeldEnds: messages that are held for a process that never proves its user are given up.
func TestHeldEnds(t *testing.T) {
	ot := newOutletTest(t, 1)
	o := ot.devices[0]
	if sent, _ := o.pass(ot.boxes[0].name, []byte("message")); !sent {
		t.Fatal("the message is not held")
	}
	handovertest.Await(t, "the message to be given up", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.held == 0
	})
}
