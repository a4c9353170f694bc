package connector

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Kind is the kind of an Event.
type Kind uint8

const (
	// Replied: the peer accepts, with Params. This end now brings its QP into service by QPAttr, and
	// then calls Ready.
	Replied Kind = iota + 1

	// Established: the connection is complete. Params are the peer's, unless Replied or a Request
	// has told them before. A connector that brings QPs into service itself reports no Replied.
	Established

	// Rejected: the peer says no, with Reason, Info and Params.PrivateData. The connection is over.
	Rejected

	// Unreachable: the peer does not answer. The matter is over.
	Unreachable

	// Disconnected: the connection has ended, by either end. TimedOut says that the peer did not
	// confirm it.
	Disconnected

	// TimewaitExit follows Disconnected when no packet of the connection can be under way any more.
	TimewaitExit

	// Found: the QP behind the peer's UD service is Peer.
	Found

	// NotFound: the peer refuses to name a QP, with Reason, a SIDR status, and Peer.PrivateData.
	NotFound

	// Joined: this end is a member of Group, to which datagrams go by Peer.
	Joined

	// NotJoined: Group cannot be joined, because of Err.
	NotJoined

	// Routed: the way to the peer is known.
	Routed
)

// Event is a change of a Conn. The receiver may keep its slices.
type Event struct {
	Kind     Kind
	Params   Params // the peer's, its resources as they are for this end
	Peer     Datagram
	Reason   uint16 // a wire.RejReason or wire.SIDRStatus
	Info     []byte // depends on the reason, such as the peer's MTU
	TimedOut bool
	Port     uint16 // of Established and Routed, where the network has the ports: that of this end, which may be another than was asked for; or 0
	Err      error  // of Rejected, Unreachable, Disconnected and NotJoined: the cause, where it is known
	Group    netip.Addr

	// Confirmation is the private data of the peer's last message, of Established at the accepting end. It
	// is nil if the connection's first packet has established it, and empty if the peer's wish to end it
	// has.
	Confirmation []byte
}

var kinds = [...]Kind{
	cm.EventReply:        Replied,
	cm.EventEstablished:  Established,
	cm.EventRejected:     Rejected,
	cm.EventUnreachable:  Unreachable,
	cm.EventDisconnected: Disconnected,
	cm.EventTimeWaitExit: TimewaitExit,
	cm.EventSIDRReply:    Found,
}

// take updates the connection by an event of the machine, and returns the event to report. The
// caller holds c.c.mu.
func (c *ibConn) take(ev *cm.Event) Event {
	report := Event{Kind: kinds[ev.Type], TimedOut: ev.TimedOut}
	switch report.Kind {
	case Replied:
		c.agreed.peerQPN, c.agreed.peerPSN = verbs.QPN(ev.Params.QPN), verbs.PSN(ev.Params.PSN)
		c.agreed.rnrRetry, c.agreed.ackTimeout = ev.Params.RNRRetryCount, c.ib.ACKTimeout()
		report.Params = paramsOf(&ev.Params)
	case Established:
		report.Confirmation = ev.PrivateData
	case Rejected:
		report.Reason, report.Info, report.Params = uint16(ev.Reason), slices.Clone(ev.ARI), Params{PrivateData: ev.PrivateData}
	case Found:
		report.Peer.PrivateData = ev.PrivateData
		if ev.Status != wire.SIDRSuccess {
			report.Kind, report.Reason = NotFound, uint16(ev.Status)
			break
		}
		if report.Peer.AH, report.Err = pathTo(c.c.dev, c.path.Remote, c.pkey, c.sgid, c.path.TrafficClass); report.Err != nil {
			report.Kind = Unreachable
			break
		}
		report.Peer.QPN, report.Peer.QKey = verbs.QPN(ev.QPN), verbs.QKey(ev.QKey)
	}
	return report
}
