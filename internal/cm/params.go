package cm

import (
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Path is where a MAD goes to or came from. Addresses stand for GIDs.
type Path struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
}

// Params describe one end of a connection, as its owner gives them. ResponderResources and
// InitiatorDepth are those of that end. Its peer's QP takes them the other way round.
type Params struct {
	QPN                uint32 // 24 bits
	PSN                uint32 // 24 bits: the first that the peer's send queue uses
	UC                 bool   // of a REQ: UC QPs connect; otherwise RC
	ResponderResources uint8  // READs and atomics that this end serves at a time
	InitiatorDepth     uint8  // READs and atomics that this end wants under way at a time
	FlowControl, SRQ   bool
	RNRRetryCount      uint8 // 0 to 7, for the peer's QP

	// PrivateData is the user's. A REQ has room for 92 bytes and a REP for 196. It arrives filled
	// up with zeros to the length of the field.
	PrivateData []byte
}

// terms are the parameters that the ends of a connection have told each other.
type terms struct {
	ownParams  Params // without the private data, which has been sent
	peerParams Params
	request    RequestParams
	lifetime   uint8 // of a packet on the path, a code
	ackTimeout uint8 // code
}

// Remote returns the peer's parameters: those of the REQ, or of the REP once EventReply has come.
func (c *Conn) Remote() Params { return c.peerParams }

// Requested returns the parameters of the REQ beside those of its sender. On the active side
// ACKTimeout is the one for the peer.
func (c *Conn) Requested() RequestParams { return c.request }

// ACKTimeout returns the code for the timeout attribute of this side's QP. On the active side it
// is right once EventReply has come.
func (c *Conn) ACKTimeout() uint8 { return c.ackTimeout }

// ConnectParams are the parameters of [Machine.Connect]. Timeouts are codes of 5 bits for 4.096 µs
// × 2^code.
type ConnectParams struct {
	Service uint64
	Params
	MTU             uint8  // path MTU: 1 for 256 bytes to 5 for 4096
	RetryCount      uint8  // 0 to 7, for the QPs of both ends
	FlowLabel       uint32 // 20 bits
	ACKTimeout      uint8  // of the peer's QP; 0 derives it from PacketLifetime and Config.ACKDelay
	PacketLifetime  uint8  // 0 is one less than ACKTimeout, or DefaultPacketLifetime
	RemoteCMTimeout uint8  // within which the peer is to answer; 0 is DefaultCMTimeout
	LocalCMTimeout  uint8  // within which this side will answer; 0 is DefaultCMTimeout
	MaxCMRetries    uint8  // 0 is DefaultCMRetries, and at most 15
	Way             Way    // on InfiniBand
	PKey            uint16 // 0 is the default one
}

// Way is what the path of a REQ says on InfiniBand. The zero Way is of other networks.
type Way struct {
	LocalLID, RemoteLID uint16
	SL                  uint8
	Routed              bool // by routers, whose LIDs they are: the REQ tells none
}

// RequestParams are the parameters of a REQ beside the [Params] of its sender.
type RequestParams struct {
	Service    uint64
	MTU        uint8 // path MTU: 1 for 256 bytes to 5 for 4096
	RetryCount uint8 // for the QPs of both ends
	ACKTimeout uint8 // for the QP of the passive side
	PKey       uint16
}

// check returns why the parameters cannot be sent in a message with room bytes for private data.
func (p *Params) check(room int) error {
	switch {
	case p.QPN > max24 || p.PSN > max24:
		return fmt.Errorf("%w: QPN %#x and PSN %#x have 24 bits", ErrInvalid, p.QPN, p.PSN)
	case len(p.PrivateData) > room:
		return tooLong(len(p.PrivateData), room)
	}
	return nil
}

// complete fills in the defaults. It returns why the parameters cannot be sent.
func (p *ConnectParams) complete(ackDelay uint8) error {
	if p.PacketLifetime == 0 && p.ACKTimeout > 0 {
		p.PacketLifetime = p.ACKTimeout - 1
	}
	orDefault(&p.PacketLifetime, DefaultPacketLifetime)
	orDefault(&p.RemoteCMTimeout, DefaultCMTimeout)
	orDefault(&p.LocalCMTimeout, DefaultCMTimeout)
	orDefault(&p.MaxCMRetries, DefaultCMRetries)
	orDefault(&p.PKey, wire.DefaultPKey)
	orDefault(&p.ACKTimeout, ackTimeout(ackDelay, p.PacketLifetime))
	p.RetryCount, p.RNRRetryCount = min(p.RetryCount, maxQPRetries), min(p.RNRRetryCount, maxQPRetries)
	switch {
	case p.MTU < minMTU || p.MTU > maxMTU:
		return fmt.Errorf("%w: path MTU code %d: codes are %d to %d", ErrInvalid, p.MTU, minMTU, maxMTU)
	case max(p.ACKTimeout, p.PacketLifetime, p.RemoteCMTimeout, p.LocalCMTimeout) > maxTimeoutCode:
		return fmt.Errorf("%w: a timeout code is over %d", ErrInvalid, maxTimeoutCode)
	case p.MaxCMRetries > maxCMRetries:
		return fmt.Errorf("%w: %d CM retries: at most %d", ErrInvalid, p.MaxCMRetries, maxCMRetries)
	}
	return p.check(wire.REQPrivateDataSize)
}

func orDefault[T uint8 | uint16](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

func (p Path) check() error {
	if !p.Local.IsValid() || !p.Remote.IsValid() {
		return fmt.Errorf("%w: a path needs a local and a remote address", ErrInvalid)
	}
	return nil
}

// bare makes addresses comparable: a GID has neither a zone nor a second form for IPv4.
func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func sameAddr(a, b netip.Addr) bool { return a == b || bare(a) == bare(b) }
