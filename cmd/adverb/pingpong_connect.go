package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"

	"github.com/adverb-rdma/adverb/verbs"
)

// Attributes of a connection, as the C programs set them.
const (
	pingMinRNRTimer = 12
	pingTimeout     = 14
	pingRetry       = 7
	pingRDAtomic    = 1
)

// chooseAddress fills in where each QP is.
func (p *pingpong) chooseAddress() error {
	f := &p.flags
	port, err := p.dev.QueryPort(f.ibPort)
	if err != nil {
		return pingErr(err, "Couldn't get port info")
	}
	ethernet := port.LinkLayer == verbs.LinkLayerEthernet
	if !ethernet && port.LID == 0 && p.kind.needsLID {
		return pingErr(errors.New("the port has no LID: is a subnet manager running?"), "Couldn't get local LID")
	}
	index := f.gidIndex
	if index < 0 && ethernet {
		// The C program goes on without a GID, and fails later.
		entries, err := p.dev.GIDs(f.ibPort)
		if err != nil {
			return pingErr(err, p.kind.gidLine, f.gidIndex)
		}
		var ok bool
		if index, ok = firstGID(entries); !ok {
			return pingErr(fmt.Errorf("%s has no RoCE v2 address; give its interface an IP address", p.dev.Name()),
				p.kind.gidLine, f.gidIndex)
		}
	}
	var gid verbs.GID
	if index >= 0 {
		e, err := p.dev.GID(f.ibPort, index)
		if err != nil {
			return pingErr(err, p.kind.gidLine, index)
		}
		p.sgidIndex, gid = index, e.GID
	}
	for i := range p.qps {
		qp := &p.qps[i]
		qp.local = pingpongEnd{LID: port.LID, QPN: qp.QPN(), PSN: verbs.PSN(rand.Uint32N(1 << 24)), GID: gid}
	}
	return nil
}

// exchange learns where the peer is, and connects to it. The lines about the peer come where the
// C programs have them: a server connects first. l is the server's.
func (p *pingpong) exchange(l net.Listener) error {
	ctx, f := p.inv.ctx, &p.flags
	x := exchange{local: make([]pingpongEnd, p.kind.endMessages)}
	for i := range p.qps {
		x.local[i] = p.qps[i].local
	}
	if l == nil {
		x.connect = func(remote []pingpongEnd) error {
			p.printRemote(remote)
			return p.connect(remote)
		}
		return x.client(ctx, f.host, f.port)
	}
	var peer []pingpongEnd
	x.connect = func(remote []pingpongEnd) error {
		peer = remote
		return p.connect(remote)
	}
	if err := x.server(ctx, l); err != nil {
		return err
	}
	p.printRemote(peer)
	return nil
}

func (p *pingpong) printRemote(remote []pingpongEnd) {
	for _, e := range remote[:len(p.qps)] {
		printEnd(p.inv.stdout, remoteAddressFormat, e)
	}
}

var errNoPeerGID = errors.New("the peer has no GID, and Ethernet needs one: give the peer its -g (\"adverb gids\" or \"ibv_devinfo -v\" there lists them)")

// connect takes the QPs to RTR and RTS.
func (p *pingpong) connect(remote []pingpongEnd) error {
	if p.kind.srq {
		if err := p.checkPeerCount(remote); err != nil {
			return err
		}
	}
	for i := range p.qps {
		if !remote[0].hasGID() && p.kind.qpType != verbs.QPTypeUD {
			return pingErr(errNoPeerGID, "Failed to modify QP%s to RTR", p.qpIndex(i))
		}
		qp := &p.qps[i]
		if err := qp.Modify(p.rtr(remote[i], remote[0].GID)); err != nil {
			return pingErr(err, "Failed to modify QP%s to RTR", p.qpIndex(i))
		}
		err := qp.RTS(qp.local.PSN, verbs.Retry{Timeout: pingTimeout, Count: pingRetry, RNRCount: pingRetry, MaxRDAtomic: pingRDAtomic})
		if err != nil {
			return pingErr(err, "Failed to modify QP%s to RTS", p.qpIndex(i))
		}
	}
	if p.kind.qpType == verbs.QPTypeUD {
		return p.address(remote[0])
	}
	return nil
}

// checkPeerCount refuses a peer that has another number of QPs. The C programs go on, and wait
// for ever.
func (p *pingpong) checkPeerCount(remote []pingpongEnd) error {
	n := 0
	for n < len(remote) && remote[n].QPN != 0 {
		n++
	}
	if n == len(p.qps) {
		return nil
	}
	return pingErr(fmt.Errorf("the peer has %d QPs, and here are %d: give both ends the same -q", n, len(p.qps)),
		"Failed to modify QP[%d] to RTR", min(n, len(p.qps)))
}

// path is the way to the peer. The C programs set a hop limit of 1 for connections, but what
// counts there is the kernel's route. The default of verbs reaches as far.
func (p *pingpong) path(dgid verbs.GID) verbs.AHAttr {
	return verbs.AHAttr{DGID: dgid, SGIDIndex: p.sgidIndex, SL: uint8(p.flags.sl), Port: p.flags.ibPort}
}

// rtr is what a QP is told on its way to RTR.
func (p *pingpong) rtr(remote pingpongEnd, dgid verbs.GID) (*verbs.QPAttr, verbs.QPAttrMask) {
	attr := &verbs.QPAttr{
		State:           verbs.QPStateRTR,
		AH:              p.path(dgid),
		PathMTU:         p.flags.mtu,
		DestQPN:         remote.QPN,
		RQPSN:           remote.PSN,
		MaxDestRDAtomic: pingRDAtomic,
		MinRNRTimer:     pingMinRNRTimer,
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

// address addresses the datagrams.
func (p *pingpong) address(remote pingpongEnd) (err error) {
	const line = "Failed to create AH"
	if !remote.hasGID() {
		return pingErr(errNoPeerGID, line)
	}
	if p.ah, err = p.pd.CreateAH(p.path(remote.GID)); err != nil {
		return pingErr(err, line)
	}
	wr := &p.qps[0].send[0]
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, remote.QPN, pingQKey
	return nil
}
