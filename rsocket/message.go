package rsocket

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// message is one message on its way out, and the memory of the work requests that are posted for it. The caller
// of post fills the first work request, a WRITE with immediate data.
type message struct {
	wrs  [2]verbs.SendWR
	sges [1]verbs.SGE
	word [wordSize]byte
}

// creditStep is after how many messages of data the peer hears that it may send more. It is less than the peer may send,
// so that it need not wait for that: it sends up to half of Depth over iWARP.
func (c *Conn) creditStep() uint16 { return uint16(uint32(c.cfg.Depth) / (2 * c.parts())) }

// mayGrant reports whether the peer is to hear of memory that is free again. Over iWARP the peer hears of free
// memory when it has none left. The last bytes of a peer in C may still wait in its TCP when the peer has closed,
// and TCP drops them when anything comes after the close. A peer that has no memory left has sent them all, and
// needs the word if more is to come.
func (c *Conn) mayGrant() bool { return c.freed >= len(c.inRing)/2 && (!c.bySend || c.granted == 0) }

// parts returns how many work requests a message takes.
func (c *Conn) parts() uint32 {
	if c.bySend {
		return 2
	}
	return 1
}

// postMessage posts a message, of which n bytes are in the memory out from start on.
func (c *Conn) postMessage(m *message, start, n int) error {
	w := &m.wrs[0]
	if n > 0 {
		m.sges[0] = c.out.SGE(start, n)
		w.SGList = m.sges[:]
	}
	wrs := m.wrs[:1]
	if c.bySend && w.Op == verbs.OpRDMAWriteWithImm {
		wrs = m.split(c.order)
	}
	_, err := c.qp.PostSend(wrs)
	return err
}

// split has the word follow the WRITE as a SEND, which the device copies at once. Without a payload there is no WRITE.
func (m *message) split(o binary.ByteOrder) []verbs.SendWR {
	w := &m.wrs[0]
	o.PutUint32(m.word[:], w.Imm)
	m.wrs[1] = verbs.SendWR{ID: w.ID, Op: verbs.OpSend, Flags: w.Flags | verbs.SendInline, InlineData: m.word[:]}
	if w.SGList == nil {
		return m.wrs[1:]
	}
	w.Op, w.Flags, w.Imm = verbs.OpRDMAWrite, 0, 0
	return m.wrs[:]
}

// makeReceives makes the work requests of postReceives, and posts the first ones.
func (c *Conn) makeReceives() error {
	c.recvWRs = make([]verbs.RecvWR, repostAt)
	var sges []verbs.SGE
	if c.bySend {
		sges = make([]verbs.SGE, repostAt)
	}
	for i := range c.recvWRs {
		c.recvWRs[i].ID = idRecv
		if c.bySend {
			c.recvWRs[i].SGList = sges[i : i+1]
		}
	}
	for left := c.cfg.receives(); left > 0; {
		n, err := c.postReceives(left)
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// postReceives posts n receives, or as many as go into one list.
func (c *Conn) postReceives(n int) (posted int, err error) {
	wrs := c.recvWRs[:min(n, len(c.recvWRs))]
	slots := c.cfg.receives()
	if c.bySend {
		for i := range wrs {
			slot := (c.recvSlot + i) % slots
			wrs[i].ID = idRecv | uint64(slot)
			wrs[i].SGList[0] = c.out.SGE(c.wordOffset(slot), wordSize)
		}
	}
	posted, err = c.qp.PostRecv(wrs)
	c.recvSlot = (c.recvSlot + posted) % slots
	return posted, err
}

// wordOffset is where in the memory out a receive puts the word: behind the send ring, where the peer cannot write.
func (c *Conn) wordOffset(slot int) int { return outStart + c.cfg.SendBuffer + slot*wordSize }

// wordOf returns the word of a message that has come.
func (c *Conn) wordOf(wc *verbs.WC) (uint32, error) {
	imm := wc.Flags&verbs.WCFlagWithImm != 0
	switch {
	case !c.bySend && !imm:
		return 0, fmt.Errorf("%w: a message without immediate data", errProtocol)
	case !c.bySend:
		return wc.Imm, nil
	case imm || wc.ByteLen != wordSize:
		return 0, fmt.Errorf("%w: a message of %d bytes, with immediate data: %v; over iWARP messages are SENDs of %d", errProtocol, wc.ByteLen, imm, wordSize)
	}
	at := c.wordOffset(int(uint32(wc.ID)))
	return c.order.Uint32(c.out.Bytes()[at:]), nil
}
