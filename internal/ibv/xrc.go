//go:build linux && (amd64 || arm64)

package ibv

// The types of XRC QPs, and of XRC SRQs.
const (
	qpTypeXRCRecv = 10 // IBV_QPT_XRC_RECV
	srqTypeXRC    = 1  // IBV_SRQT_XRC
)

// OpenXRCD opens an XRC domain: that of a file, or with fd -1 one without. flags are those of open(2).
func (l *Lib) OpenXRCD(c Ref[Context], fd, flags int) (Ref[XRCD], error) {
	const withFD, withFlags = 1 << 0, 1 << 1
	return made(func(s *scratch) (Ref[XRCD], error) {
		a := put(s, xrcdInitAttr{compMask: withFD | withFlags, fd: int32(fd), oflags: int32(flags)})
		return pointer[XRCD](s, extended(c, "ibv_open_xrcd", toOpenXRCD), c.at, a.at)
	})
}

// CloseXRCD closes an XRC domain.
func (l *Lib) CloseXRCD(x Ref[XRCD]) error {
	return do(extended(x.P().context, "ibv_close_xrcd", toCloseXRCD), x.at)
}

// CreateXRCSRQ makes an XRC SRQ, whose completions come to a CQ.
func (l *Lib) CreateXRCSRQ(x Ref[XRCD], p Ref[PD], cq Ref[CQ], attr SRQAttr) (Ref[SRQ], error) {
	const withType, withPD, withXRCD, withCQ = 1 << 0, 1 << 1, 1 << 2, 1 << 3
	c := x.P().context
	return made(func(s *scratch) (Ref[SRQ], error) {
		a := put(s, srqInitAttrEx{attr: attr, compMask: withType | withPD | withXRCD | withCQ, srqType: srqTypeXRC, pd: p, xrcd: x, cq: cq})
		return pointer[SRQ](s, extended(c, "ibv_create_srq_ex", toCreateSRQEx), c.at, a.at)
	})
}

// SRQNum returns the number of an XRC SRQ.
func (l *Lib) SRQNum(q Ref[SRQ]) (uint32, error) {
	return fill[uint32](extended(q.P().context, "ibv_get_srq_num", toGetSRQNum), []uintptr{q.at})
}

// CreateXRCTarget makes a QP that receives into the SRQs of an XRC domain.
func (l *Lib) CreateXRCTarget(x Ref[XRCD]) (Ref[QP], error) {
	c := x.P().context
	return made(func(s *scratch) (Ref[QP], error) {
		a := put(s, qpInitAttrEx{qpType: qpTypeXRCRecv, compMask: initAttrXRCD, xrcd: x})
		return pointer[QP](s, extended(c, "ibv_create_qp_ex", toCreateQPEx), c.at, a.at)
	})
}

// OpenXRCTarget opens a QP of an XRC domain once more.
func (l *Lib) OpenXRCTarget(x Ref[XRCD], qpn uint32) (Ref[QP], error) {
	const withNum, withXRCD, withType = 1 << 0, 1 << 1, 1 << 3
	c := x.P().context
	return made(func(s *scratch) (Ref[QP], error) {
		a := put(s, qpOpenAttr{compMask: withNum | withXRCD | withType, qpNum: qpn, xrcd: x, qpType: qpTypeXRCRecv})
		return pointer[QP](s, extended(c, "ibv_open_qp", toOpenQP), c.at, a.at)
	})
}
