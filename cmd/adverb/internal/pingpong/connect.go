package pingpong

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/verbs"
)

// Attributes of a connection, as the C programs set them.
const (
	minRNRTimer = 12
	ackTimeout  = 14
	retryCount  = 7
	rdAtomic    = 1
)

// chooseAddress fills in the peer's data of each QP.
func (p *pingpong) chooseAddress() error {
	lid, e, err := chooseGID(p.dev, &p.flags, p.kind)
	if err != nil {
		return err
	}
	p.sgidIndex = e.Index
	for i := range p.qps {
		qp := &p.qps[i]
		qp.ownEnd = exchange.End{LID: lid, QPN: qp.QPN(), PSN: verbs.PSN(rand.Uint32N(1 << 24)), GID: e.GID}
	}
	return nil
}

// chooseGID returns the address of this end. The GID is zero where a port of InfiniBand needs none.
func chooseGID(dev *verbs.Device, f *flags, k *kind) (lid uint16, e verbs.GIDEntry, err error) {
	port, err := dev.QueryPort(f.ibPort)
	if err != nil {
		return 0, e, fail(err, "Couldn't get port info")
	}
	ethernet := port.LinkLayer == verbs.LinkLayerEthernet
	if !ethernet && port.LID == 0 && k.needsLID {
		return 0, e, fail(errors.New("the port has no LID: is a subnet manager running?"), "Couldn't get local LID")
	}
	index := f.gidIndex
	if index < 0 && ethernet {
		// The C program goes on without a GID, and fails later.
		entries, err := dev.GIDs(f.ibPort)
		if err != nil {
			return 0, e, fail(err, k.gidLine, f.gidIndex)
		}
		var ok bool
		if index, ok = device.FirstGID(entries); !ok {
			return 0, e, fail(fmt.Errorf("%s has no RoCE v2 address; give its interface an IP address", dev.Name()), k.gidLine, f.gidIndex)
		}
	}
	if index >= 0 {
		if e, err = dev.GID(f.ibPort, index); err != nil {
			return 0, e, fail(err, k.gidLine, index)
		}
	}
	return port.LID, e, nil
}

// meet learns where the peer is, and connects to it. It prints the lines about the peer where the C
// programs have them: a server connects first. l is the server's listener, and nil for a client.
func (p *pingpong) meet(l net.Listener) error {
	ctx, f := p.inv.Ctx, &p.flags
	x := exchange.Exchange{Local: make([]exchange.End, p.kind.endMessages)}
	for i := range p.qps {
		x.Local[i] = p.qps[i].ownEnd
	}
	if l == nil {
		x.Connect = func(remote []exchange.End) error {
			p.printRemote(remote)
			return p.connect(remote)
		}
		return x.Client(ctx, f.host, f.port)
	}
	var peer []exchange.End
	x.Connect = func(remote []exchange.End) error {
		peer = remote
		return p.connect(remote)
	}
	if err := x.Server(ctx, l); err != nil {
		return err
	}
	p.printRemote(peer)
	return nil
}

func (p *pingpong) printRemote(remote []exchange.End) {
	for _, e := range remote[:len(p.qps)] {
		printEnd(p.inv.Stdout, remoteAddressFormat, e)
	}
}

var errNoPeerGID = errors.New("the peer has no GID, and Ethernet needs one: give the peer its -g (\"adverb gids\" or \"ibv_devinfo -v\" there lists them)")

// connect takes the QPs to RTR and RTS.
func (p *pingpong) connect(remote []exchange.End) error {
	if p.kind.srq {
		if err := p.checkPeerCount(remote); err != nil {
			return err
		}
	}
	for i := range p.qps {
		if !remote[0].HasGID() && p.kind.qpType != verbs.QPTypeUD {
			return fail(errNoPeerGID, "Failed to modify QP%s to RTR", p.qpIndex(i))
		}
		qp := &p.qps[i]
		if err := qp.Modify(p.rtr(remote[i], remote[0].GID)); err != nil {
			return fail(err, "Failed to modify QP%s to RTR", p.qpIndex(i))
		}
		err := qp.RTS(qp.ownEnd.PSN, verbs.Retry{Timeout: ackTimeout, RetryCount: retryCount, RNRRetryCount: retryCount, MaxRDAtomic: rdAtomic})
		if err != nil {
			return fail(err, "Failed to modify QP%s to RTS", p.qpIndex(i))
		}
	}
	if p.kind.qpType == verbs.QPTypeUD {
		return p.address(remote[0])
	}
	return nil
}

// checkPeerCount refuses a peer that has another number of QPs. The C programs go on with such a
// peer, and wait for ever.
func (p *pingpong) checkPeerCount(remote []exchange.End) error {
	n := 0
	for n < len(remote) && remote[n].QPN != 0 {
		n++
	}
	if n == len(p.qps) {
		return nil
	}
	return fail(fmt.Errorf("the peer has %d QPs, and here are %d: give both ends the same -q", n, len(p.qps)),
		"Failed to modify QP[%d] to RTR", min(n, len(p.qps)))
}

// path is the way to the peer. The C programs set a hop limit of 1 for connections, which has no
// effect there: the kernel's route decides. The default of package verbs reaches as far.
func (p *pingpong) path(dgid verbs.GID) verbs.AHAttr {
	return verbs.AHAttr{DGID: dgid, SGIDIndex: p.sgidIndex, SL: uint8(p.flags.sl), Port: p.flags.ibPort}
}

// rtr returns the attributes that take a QP to RTR.
func (p *pingpong) rtr(remote exchange.End, dgid verbs.GID) (*verbs.QPAttr, verbs.QPAttrMask) {
	attr := &verbs.QPAttr{
		State:           verbs.QPStateRTR,
		AH:              p.path(dgid),
		PathMTU:         p.flags.mtu,
		DestQPN:         remote.QPN,
		RQPSN:           remote.PSN,
		MaxDestRDAtomic: rdAtomic,
		MinRNRTimer:     minRNRTimer,
	}
	switch p.kind.qpType {
	case verbs.QPTypeUD:
		return attr, verbs.MaskState
	case verbs.QPTypeUC:
		return attr, verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN
	}
	return attr, verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN |
		verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
}

// address makes the address handle of the datagrams.
func (p *pingpong) address(remote exchange.End) (err error) {
	const line = "Failed to create AH"
	if !remote.HasGID() {
		return fail(errNoPeerGID, line)
	}
	if p.ah, err = p.pd.CreateAH(p.path(remote.GID)); err != nil {
		return fail(err, line)
	}
	wr := &p.qps[0].send[0]
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, remote.QPN, qkey
	return nil
}
