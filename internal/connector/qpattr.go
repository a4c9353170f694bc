package connector

import (
	"errors"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// qpAccess is the access of peers through QPs; each MR has access flags of its own.
	qpAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind

	// minRNRTimer is the code of the time that peers wait after an RNR NAK: 0.64 ms.
	minRNRTimer = 12
)

// ErrNoPeer is the error of QPAttr until the peer has named its QP.
var ErrNoPeer = errors.New("the peer's QP is not known yet")

// QPAttr returns the attributes with which a QP goes to INIT, RTR or RTS, as far as the ends have
// agreed on them. An empty mask says that there is nothing to modify: the connector takes the QP
// there itself. How many READs and atomics may be outstanding is in the mask, and left to the
// caller to fill in.
func (c *ibConn) QPAttr(typ verbs.QPType, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	c.c.mu.Lock()
	agreed, sgid := c.agreed, c.sgid
	c.c.mu.Unlock()
	a := verbs.QPAttr{State: to}
	if typ != verbs.QPTypeUD && to != verbs.QPStateInit && agreed.peerQPN == 0 {
		return a, 0, ErrNoPeer
	}
	mask := verbs.MaskState
	switch to {
	case verbs.QPStateInit:
		var ok bool
		if a.PKeyIndex, ok = pkeyIndex(c.c.dev, c.pkey); !ok {
			return a, 0, verbs.Errorf(verbs.ErrNotFound, "P_Key %#04x: the port's table has it no more", uint16(c.pkey))
		}
		a.Port = DevicePort
		mask |= verbs.MaskPKeyIndex | verbs.MaskPort
		if typ == verbs.QPTypeUD {
			a.QKey = UDQKey
			return a, mask | verbs.MaskQKey, nil
		}
		a.Access = qpAccess
		return a, mask | verbs.MaskAccessFlags, nil
	case verbs.QPStateRTR:
		if typ == verbs.QPTypeUD {
			return a, mask, nil
		}
		var err error
		if a.AH, err = pathTo(c.c.dev, c.path.Remote, c.pkey, sgid, c.path.TrafficClass); err != nil {
			return a, 0, err
		}
		a.PathMTU, a.DestQPN, a.RQPSN = agreed.mtu, agreed.peerQPN, c.psn
		mask |= verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN
		if typ == verbs.QPTypeRC {
			a.MinRNRTimer = minRNRTimer
			mask |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		}
		return a, mask, nil
	case verbs.QPStateRTS:
		a.SQPSN = agreed.peerPSN
		mask |= verbs.MaskSQPSN
		if typ == verbs.QPTypeRC {
			a.Timeout, a.RetryCnt, a.RNRRetry = agreed.ackTimeout, agreed.retryCount, agreed.rnrRetry
			mask |= verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
		}
		return a, mask, nil
	}
	return a, 0, verbs.Errorf(verbs.ErrInvalid, "state %v: QPS_INIT, QPS_RTR and QPS_RTS have attributes to find", to)
}
