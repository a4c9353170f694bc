package rdmacm_test

import (
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// byHand is QP1 of a device, for a test that writes the messages of a connection manager itself.
type byHand struct {
	t   *testing.T
	dev *verbs.Device
	gsi *verbs.GSI
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
	ah  *verbs.AH
	tid uint64
	id  uint32 // a communication ID of the device
}

const byHandRecvs = 64

// newByHand takes QP1 of d, to talk to the peer.
func newByHand(t *testing.T, d *verbs.Device, peer netip.Addr) *byHand {
	t.Helper()
	h := &byHand{t: t, dev: d, tid: 1}
	var err error
	h.gsi, err = d.GSI()
	h.ok(err)
	h.pd, err = d.AllocPD()
	h.ok(err)
	h.cq, err = d.CreateCQ(4 * byHandRecvs)
	h.ok(err)
	h.qp, err = h.gsi.CreateQP(h.pd, verbs.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: verbs.QPCap{
		MaxSendWR: byHandRecvs, MaxRecvWR: byHandRecvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: wire.MADSize,
	}})
	h.ok(err)
	h.ok(h.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: verbs.GSIQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	h.ok(h.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	h.ok(h.qp.RTS(0, verbs.Retry{}))
	h.mr, err = h.pd.AllocMR(byHandRecvs*512, verbs.AccessLocalWrite)
	h.ok(err)
	for i := range byHandRecvs {
		h.post(uint64(i))
	}
	sgid := 0
	if peer.Is6() {
		sgid = 1
	}
	h.ah, err = h.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(peer), SGIDIndex: sgid})
	h.ok(err)
	h.id, _, err = h.gsi.CommIDs()
	h.ok(err)
	return h
}

func (h *byHand) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *byHand) post(i uint64) {
	h.t.Helper()
	_, err := h.qp.PostRecv([]verbs.RecvWR{{ID: i, SGList: []verbs.SGE{h.mr.SGE(int(i)*512, 512)}}})
	h.ok(err)
}

// claim has REQs for a port come to h.
func (h *byHand) claim(ps rdmacm.PortSpace, port uint16) {
	h.t.Helper()
	_, err := h.gsi.ClaimService(0, wire.RDMAServiceID(uint16(ps), port))
	h.ok(err)
}

// newID returns another communication ID.
func (h *byHand) newID() uint32 {
	h.id++
	return h.id
}

// send sends a message of the connection manager.
func (h *byHand) send(attr wire.CMAttr, m interface{ AppendTo([]byte) []byte }) {
	h.t.Helper()
	head := wire.NewCMHeader(attr, h.tid)
	mad := m.AppendTo(head.AppendTo(nil))
	_, err := h.qp.PostSend([]verbs.SendWR{{
		Op: verbs.OpSend, Flags: verbs.SendInline, InlineData: mad, AH: h.ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey,
	}})
	h.ok(err)
}

// recv returns the 232 bytes after the MAD header of the next message, which must be of a kind.
func (h *byHand) recv(want wire.CMAttr) []byte {
	h.t.Helper()
	var wcs [1]verbs.WC
	_, err := h.cq.Wait(patience(h.t), wcs[:])
	h.ok(err)
	h.ok(wcs[0].Err())
	b := append([]byte(nil), h.mr.Bytes()[wcs[0].ID*512:][verbs.GRHSize:wcs[0].ByteLen]...)
	h.post(wcs[0].ID)
	head, err := wire.DecodeMADHeader(b)
	h.ok(err)
	attr, ok := head.CM()
	if !ok || attr != want {
		h.t.Fatalf("received: got %v, want %v", attr, want)
	}
	h.tid = head.TID
	return b[wire.MADHeaderSize:]
}

func (h *byHand) recvREQ() wire.REQ {
	h.t.Helper()
	m, err := wire.DecodeREQ(h.recv(wire.CMREQ))
	h.ok(err)
	return m
}

// req is a REQ such as rdmacm sends, from a QP number that the test chooses.
func (h *byHand) req(from, to netip.AddrPort, qpn uint32) *wire.REQ {
	src, dst := verbs.GIDFromAddr(from.Addr()), verbs.GIDFromAddr(to.Addr())
	m := &wire.REQ{
		LocalCommID: h.newID(), ServiceID: wire.RDMAServiceID(uint16(rdmacm.PortSpaceTCP), to.Port()), LocalGUID: 77, LocalQPN: qpn,
		ResponderResources: 1, InitiatorDepth: 1, RemoteCMTimeout: 18, LocalCMTimeout: 18, StartingPSN: 5, RetryCount: 7, PKey: wire.DefaultPKey,
		MTU: uint8(verbs.MTU1024), RNRRetryCount: 7, MaxCMRetries: 15,
		Primary: wire.CMPath{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: src, RemoteGID: dst, HopLimit: 64, ACKTimeout: 15},
	}
	ip := wire.IPCMHeader{Src: from.Addr(), Dst: to.Addr(), SrcPort: from.Port()}
	copy(m.PrivateData[:], ip.AppendTo(nil))
	return m
}
