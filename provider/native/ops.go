//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// extendedOps are the operations that RC QPs of a device have beside those of ibv_post_send.
type extendedOps struct {
	ops  ibv.SendOps
	caps verbs.DeviceCapFlagsEx // the device's flags of these operations
	why  string                 // why the others are left out, or ""
}

// extended are the operations, each with the flags of a device that has it, and with the first version of rdma-core that has it.
var extended = []struct {
	op    ibv.SendOps
	caps  verbs.DeviceCapFlagsEx
	name  string
	since int
}{
	{ibv.WithFlush, verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent, "FLUSH", 45},
	{ibv.WithAtomicWrite, verbs.DeviceAtomicWrite, "ATOMIC WRITE", 44},
}

// findOps finds out which of the operations that the device has QPs can be made with. The driver in the library may be older than
// that in the kernel, and no version can be asked for, so QPs are made. Most devices have none of the operations, and are not asked.
func findOps(l *ibv.Lib, c ibv.Ref[ibv.Context], caps verbs.DeviceCapFlagsEx) (found extendedOps) {
	for _, e := range extended {
		if caps&e.caps == 0 {
			continue
		}
		if err := tryOps(l, c, e.op); err != nil {
			if found.why != "" {
				found.why += "; "
			}
			found.why += fmt.Sprintf("%s: %v", e.name, err)
			if errors.Is(fault(err), verbs.ErrUnsupported) {
				found.why += fmt.Sprintf(": the kernel has it, and rdma-core from %d on", e.since)
			}
			continue
		}
		found.ops |= e.op
		found.caps |= caps & e.caps
	}
	return found
}

// usable are the flags of a device but for operations with which no QP is made.
func (o *extendedOps) usable(caps verbs.DeviceCapFlagsEx) verbs.DeviceCapFlagsEx {
	for _, e := range extended {
		caps &^= e.caps
	}
	return caps | o.caps
}

// tryOps makes a QP with operations, and destroys it.
func tryOps(l *ibv.Lib, c ibv.Ref[ibv.Context], ops ibv.SendOps) (err error) {
	destroy := func(f func() error) {
		derr := f()
		if derr != nil {
			derr = f() // nobody else will do it
		}
		err = errors.Join(err, derr)
	}
	pd, err := l.AllocPD(c)
	if err != nil {
		return err
	}
	defer destroy(func() error { return l.DeallocPD(pd) })
	cq, err := l.CreateCQ(c, 1, ibv.Ref[ibv.CompChannel]{}, 0)
	if err != nil {
		return err
	}
	defer destroy(func() error { return l.DestroyCQ(cq) })
	init := ibv.QPInitAttr{SendCQ: cq, RecvCQ: cq, QPType: uint32(verbs.QPTypeRC), Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	q, _, err := l.CreateQPEx(pd, &init, ops)
	if err != nil {
		return err
	}
	destroy(func() error { return l.DestroyQP(q) })
	return err
}
