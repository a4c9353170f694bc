//go:build linux && (amd64 || arm64)

package native

import (
	"math/bits"
	"sync"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue.
type cq struct {
	d    *device
	user *verbs.CQ
	r    ibv.Ref[ibv.CQ]

	mu     sync.Mutex
	poller *ibv.Poller
	kept   []verbs.WC // taken early: see keep
	closed bool
}

// clocks are the clocks of completions as C has them.
var clocks = [...]ibv.Clock{verbs.NoTimestamps: ibv.NoClock, verbs.DeviceTimestamps: ibv.DeviceClock, verbs.WallclockTimestamps: ibv.Wallclock}

// CreateCQ implements verbs.ProviderDevice.
func (d *device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	return d.CreateCQAttr(verbs.CQAttr{Entries: entries}, user)
}

// RawClock implements verbs.ProviderCQAttr.
func (d *device) RawClock() (uint64, error) {
	t, err := d.lib.RawClock(d.c)
	return t, fault(err)
}

// CreateCQAttr implements verbs.ProviderCQAttr.
func (d *device) CreateCQAttr(a verbs.CQAttr, user *verbs.CQ) (verbs.ProviderCQ, error) {
	clock := clocks[a.Timestamps]
	var r ibv.Ref[ibv.CQ]
	var err error
	if clock == ibv.NoClock {
		r, err = d.lib.CreateCQ(d.c, a.Entries, d.feed.channel, a.CompVector)
	} else {
		r, err = d.lib.CreateCQEx(d.c, a.Entries, d.feed.channel, a.CompVector, clock)
	}
	if err != nil {
		return nil, fault(err)
	}
	c := &cq{d: d, user: user, r: r}
	if c.poller, err = ibv.NewPoller(r, clock); err != nil {
		_ = d.lib.DestroyCQ(r) // the first error is the one to tell
		return nil, fault(err)
	}
	d.cqs.put(r, c)
	return c, nil
}

// Cap implements verbs.ProviderCQ.
func (c *cq) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	return int(c.r.P().CQE)
}

// Poll implements verbs.ProviderCQ.
func (c *cq) Poll(wcs []verbs.WC) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, verbs.ErrClosed
	}
	if len(c.kept) > 0 {
		n = copy(wcs, c.kept)
		c.kept = c.kept[n:]
	}
	for n < len(wcs) {
		want := min(ibv.PollBatch, len(wcs)-n)
		got := c.poller.Poll(want)
		if got < 0 {
			return n, verbs.Errorf(verbs.ErrCQOverrun, "ibv_poll_cq: %d: the queue has failed", got)
		}
		for i := range got {
			c.convert(&wcs[n+i], i)
		}
		n += got
		if got < want {
			break
		}
	}
	if n == 0 {
		return 0, c.d.usable() // completions that came before come first
	}
	return n, nil
}

// convert makes a completion of that of C at place i. The caller holds c.mu.
func (c *cq) convert(wc *verbs.WC, i int) {
	w := &c.poller.WCs[i]
	const known = verbs.WCFlagGRH | verbs.WCFlagWithImm | verbs.WCFlagWithInv
	// Field by field: the compiler makes a literal of this size elsewhere, and copies it.
	wc.ID, wc.Status, wc.Op, wc.Flags = w.WRID, verbs.WCStatus(w.Status), verbs.WCOpcode(w.Opcode), verbs.WCFlags(w.WCFlags)&known
	wc.SL, wc.ByteLen, wc.Imm = w.SL, w.ByteLen, w.Imm
	wc.QPN, wc.SrcQPN, wc.VendorErr = verbs.QPN(w.QPNum), verbs.QPN(w.SrcQP), w.VendorErr
	wc.SLID, wc.PKeyIndex, wc.DLIDPathBits = w.SLID, w.PKeyIndex, w.DLIDPathBits
	wc.Cause, wc.Timestamp = nil, 0
	if c.poller.Times != nil {
		wc.Timestamp = c.poller.Times[i]
	}
	if wc.Flags&verbs.WCFlagWithImm != 0 {
		wc.Imm = network(w.Imm)
	}
	q := c.d.qpns.get(w.QPNum)
	if q == nil {
		wc.QP = nil
		return
	}
	wc.QP = q.user
	if q.typ != verbs.QPTypeUD {
		wc.Flags &^= verbs.WCFlagGRH // which devices of RoCE set for connected QPs too
	}
	if wc.Status != verbs.WCSuccess {
		q.failed(c, wc)
	} else if q.known() == verbs.QPStateInit {
		q.served()
	}
}

// network turns a number in host order into one in network order, and back.
func network(n uint32) uint32 {
	return bits.ReverseBytes32(n) // amd64 and arm64 have the least significant byte first
}

// keep takes the completions that are in the queue, for polls to come. It is called before a QP goes, or goes to RESET:
// drivers drop its completions, or give its number to another.
func (c *cq) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		got := c.poller.Poll(ibv.PollBatch)
		for i := range max(got, 0) {
			var wc verbs.WC
			c.convert(&wc, i)
			c.kept = append(c.kept, wc)
		}
		if got < ibv.PollBatch {
			return
		}
	}
}

// Arm implements verbs.ProviderCQ.
func (c *cq) Arm(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return verbs.ErrClosed
	}
	if err := c.d.usable(); err != nil {
		return err
	}
	return fault(c.poller.Arm(solicitedOnly))
}

// Resize implements verbs.ProviderCQ.
func (c *cq) Resize(entries int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fault(c.d.lib.ResizeCQ(c.r, entries))
}

// Close implements verbs.ProviderCQ.
func (c *cq) Close() error {
	c.d.cqs.remove(c.r) // before C may give the address to another
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.d.destroyed(c.d.lib.DestroyCQ(c.r)); err != nil {
		c.d.cqs.put(c.r, c)
		return fault(err)
	}
	c.closed, c.kept = true, nil
	c.poller.Free()
	c.d.events.Drop(func(e verbs.AsyncEvent) bool { return e.CQ == c.user })
	return nil
}
