package cm

import "github.com/adverb-rdma/adverb/internal/wire"

// outgoing is a MAD that waits for Transmit.
type outgoing struct {
	path Path
	mad  [wire.MADSize]byte
}

// body is a CM message of package wire.
type body interface{ AppendTo([]byte) []byte }

func (m *Machine) queued() int { return len(m.out) - m.nextOut }

// Transmit returns the next MAD to send, from QP1 to QP1, if there is one. mad is valid until the
// next call of any method.
func (m *Machine) Transmit() (p Path, mad []byte, ok bool) {
	if m.nextOut == len(m.out) {
		m.out, m.nextOut = m.out[:0], 0
		return Path{}, nil, false
	}
	o := &m.out[m.nextOut]
	m.nextOut++
	return o.path, o.mad[:], true
}

// encode writes a MAD.
func encode(b []byte, attr wire.CMAttr, tid uint64, msg body) []byte {
	h := wire.NewCMHeader(attr, tid)
	return msg.AppendTo(h.AppendTo(b))
}

// send queues a message.
func (m *Machine) send(p Path, attr wire.CMAttr, tid uint64, msg body) {
	if o := m.queue(p, attr); o != nil {
		encode(o.mad[:0], attr, tid, msg)
	}
}

// sendMAD queues a whole MAD.
func (m *Machine) sendMAD(p Path, attr wire.CMAttr, mad []byte) {
	if o := m.queue(p, attr); o != nil {
		copy(o.mad[:], mad)
	}
}

// resend queues a whole MAD that was sent before.
func (m *Machine) resend(p Path, attr wire.CMAttr, mad []byte) {
	m.stats.Repeated.add(attr)
	m.sendMAD(p, attr, mad)
}

// queue makes room for a MAD. If there is none it drops the MAD, as the network might, and returns
// nil.
func (m *Machine) queue(p Path, attr wire.CMAttr) *outgoing {
	if m.queued() >= maxQueue {
		m.stats.Dropped++
		return nil
	}
	if len(m.out) == cap(m.out) && m.nextOut > len(m.out)/2 { // make room at the front rather than grow
		n := copy(m.out, m.out[m.nextOut:])
		m.out, m.nextOut = m.out[:n], 0
	}
	m.stats.Sent.add(attr)
	m.out = append(m.out, outgoing{path: p})
	return &m.out[len(m.out)-1]
}
