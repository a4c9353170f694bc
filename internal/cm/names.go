package cm

import "net/netip"

// names are the numbers by which messages name a connection. Each end has chosen one of the two
// communication IDs.
type names struct {
	id       uint32
	remoteID uint32 // 0 until the peer's first message with it
	guid     uint64 // of the peer's channel adapter
	tid      uint64 // of the REQ

	// delayID is the peer's communication ID as an MRA for the REQ has told it. It counts only
	// until the REP comes.
	delayID uint32

	// refusedID is the peer's communication ID in a REP that was rejected here, or that the peer
	// has taken back. A REP with it cannot make the connection.
	refusedID uint32
}

// remoteKey names something by a number that its peer has given it. The address is part of it, so
// that nobody can speak for another host.
type remoteKey struct {
	addr netip.Addr
	guid uint64
	n    uint32
}

// ID returns the connection's own communication ID.
func (c *Conn) ID() uint32 { return c.id }

// RemoteID returns the peer's communication ID, or 0 as long as it is not known.
func (c *Conn) RemoteID() uint32 { return c.remoteID }

// refuse has no REP with a communication ID make the connection.
func (c *Conn) refuse(id uint32) { c.refusedID = id }

func (c *Conn) idKey() remoteKey  { return remoteKey{bare(c.path.Remote), c.guid, c.remoteID} }
func (c *Conn) qpnKey() remoteKey { return remoteKey{bare(c.path.Remote), c.guid, c.peerParams.QPN} }

// learn has the machine find the connection by the peer's names for it.
func (c *Conn) learn() { c.m.byID[c.idKey()], c.m.byQPN[c.qpnKey()] = c, c }

// releaseQPN lets the peer use its QP for another connection.
func (c *Conn) releaseQPN() {
	if c.m.byQPN[c.qpnKey()] == c {
		delete(c.m.byQPN, c.qpnKey())
	}
}

// releaseIDs has nobody find the connection any more.
func (c *Conn) releaseIDs() {
	if c.m.byID[c.idKey()] == c {
		delete(c.m.byID, c.idKey())
	}
	if c.m.conns[c.id] == c {
		delete(c.m.conns, c.id)
	}
}
