package connector

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Values that this implementation has chosen.
const (
	// Up to qp1Recvs MADs may arrive while the connector is busy, and qp1Sends may be on their way out.
	// Further ones are lost, and their senders repeat them.
	qp1Recvs = 1024
	qp1Sends = 1024
	qp1Batch = 64

	// maxAHs bounds the address handles that are kept.
	maxAHs = 1024
)

// recvSize is the room that a MAD takes with the header before it.
const recvSize = verbs.GRHSize + wire.MADSize

// qp1 is a device's QP1 with all that it needs to send and receive MADs.
type qp1 struct {
	dev            *verbs.Device
	gsi            *verbs.GSI
	pd             *verbs.PD
	recvCQ, sendCQ *verbs.CQ
	mr             *verbs.MR // the receives, each recvSize long
	qp             *verbs.QP
	ib             bool // the port is one of InfiniBand

	ahs    map[cm.Path]*verbs.AH
	wr     [1]verbs.SendWR
	reaped [qp1Batch]verbs.WC
}

// open creates QP1 and brings it into service. After an error nothing is left of it.
func (q *qp1) open(dev *verbs.Device) (err error) {
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	q.dev, q.ahs = dev, map[cm.Path]*verbs.AH{}
	q.ib = gidType(dev, DevicePort) == verbs.GIDTypeIB
	if q.gsi, err = dev.GSI(); err != nil {
		return err
	}
	if q.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if q.recvCQ, err = dev.CreateCQ(qp1Recvs); err != nil {
		return err
	}
	if q.sendCQ, err = dev.CreateCQ(qp1Sends); err != nil {
		return err
	}
	if q.mr, err = q.pd.AllocMR(qp1Recvs*recvSize, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if q.qp, err = q.gsi.CreateQP(q.pd, verbs.QPInitAttr{
		SendCQ: q.sendCQ, RecvCQ: q.recvCQ, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: qp1Sends, MaxRecvWR: qp1Recvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize},
	}); err != nil {
		return err
	}
	if err = q.serve(); err != nil {
		return err
	}
	wrs := make([]verbs.RecvWR, qp1Recvs)
	for i := range wrs {
		wrs[i] = q.recvWR(uint64(i))
	}
	_, err = q.qp.PostRecv(wrs)
	return err
}

// serve takes QP1 from RESET to RTS.
func (q *qp1) serve() error {
	if err := q.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: DevicePort, QKey: wire.GSIQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey); err != nil {
		return err
	}
	if err := q.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState); err != nil {
		return err
	}
	return q.qp.RTS(0, verbs.Retry{})
}

// close undoes open.
func (q *qp1) close() {
	q.forgetAHs()
	if q.qp != nil {
		q.qp.Close()
	}
	if q.mr != nil {
		q.mr.Close()
	}
	for _, cq := range []*verbs.CQ{q.recvCQ, q.sendCQ} {
		if cq != nil {
			cq.Close()
		}
	}
	if q.pd != nil {
		q.pd.Close()
	}
}

func (q *qp1) recvWR(i uint64) verbs.RecvWR {
	return verbs.RecvWR{ID: i, SGList: []verbs.SGE{q.mr.SGE(int(i)*recvSize, recvSize)}}
}

// post gives a receive back.
func (q *qp1) post(i uint64) error {
	_, err := q.qp.PostRecv([]verbs.RecvWR{q.recvWR(i)})
	return err
}

// take returns the MAD that has come into a receive, and the way back to its sender. mad is nil if
// the datagram has not the size of a MAD, which is the same for all MADs.
func (q *qp1) take(wc *verbs.WC) (path cm.Path, mad []byte, err error) {
	if wc.Status != verbs.WCSuccess {
		return path, nil, wc.Err()
	}
	if wc.ByteLen != recvSize || wc.Flags&verbs.WCFlagGRH == 0 { // on InfiniBand the sender has no address then
		return path, nil, nil
	}
	b := q.mr.Bytes()[wc.ID*recvSize:][:recvSize]
	if q.ib {
		return ipv6PathOf(b), b[verbs.GRHSize:], nil
	}
	return pathOf(b), b[verbs.GRHSize:], nil
}

// pathOf reads the way back from a GRH.
func pathOf(grh []byte) cm.Path {
	if ip := grh[verbs.GRHSize-20:]; ip[0] == 0x45 && grh[0]>>4 != 6 {
		return cm.Path{Local: netip.AddrFrom4([4]byte(ip[16:])), Remote: netip.AddrFrom4([4]byte(ip[12:])), TrafficClass: ip[1]}
	}
	var d link.Datagram
	if link.DecodeGRH(grh, &d) {
		return cm.Path{Local: d.Dst.Addr(), Remote: d.Src.Addr(), TrafficClass: d.TrafficClass}
	}
	return ipv6PathOf(grh)
}

// ipv6PathOf is pathOf for an IPv6 header, or a GRH of InfiniBand.
func ipv6PathOf(grh []byte) cm.Path {
	return cm.Path{
		Local:  netip.AddrFrom16([16]byte(grh[24:])).Unmap(),
		Remote: netip.AddrFrom16([16]byte(grh[8:])).Unmap(), TrafficClass: grh[0]<<4 | grh[1]>>4,
	}
}

// send posts a MAD.
func (q *qp1) send(path cm.Path, mad []byte) error {
	ah, err := q.ah(path)
	if err != nil {
		return err
	}
	q.wr[0] = verbs.SendWR{
		Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: mad,
		AH: ah, RemoteQPN: wire.GSIQPN, RemoteQKey: wire.GSIQKey,
	}
	q.sendCQ.Poll(q.reaped[:]) // which makes room
	_, err = q.qp.PostSend(q.wr[:])
	return err
}

// ah returns the address handle of a path.
func (q *qp1) ah(path cm.Path) (*verbs.AH, error) {
	if ah := q.ahs[path]; ah != nil {
		return ah, nil
	}
	sgid, err := gidIndex(q.dev, path.Local)
	if err != nil {
		return nil, err
	}
	attr, err := pathTo(q.dev, path.Remote, 0, sgid, path.TrafficClass)
	if err != nil {
		return nil, err
	}
	ah, err := q.pd.CreateAH(attr)
	if err != nil {
		return nil, err
	}
	if len(q.ahs) >= maxAHs {
		q.forgetAHs()
	}
	q.ahs[path] = ah
	return ah, nil
}

func (q *qp1) forgetAHs() {
	for p, ah := range q.ahs {
		ah.Close() // messages that are posted with it still go out
		delete(q.ahs, p)
	}
}
