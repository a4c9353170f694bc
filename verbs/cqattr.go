package verbs

import (
	"math"
	"math/bits"
	"time"
)

// CQTimestamps says which clock the completions of a CQ tell the time of, in [WC].Timestamp.
type CQTimestamps uint8

// The clocks of completions.
const (
	// NoTimestamps: WC.Timestamp is 0.
	NoTimestamps CQTimestamps = iota

	// DeviceTimestamps: the device's own clock (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP), which
	// [Device.RawClock] reads. It counts DeviceAttr.HCACoreClock thousands a second, and begins anew
	// beyond DeviceAttr.TimestampMask: [DeviceAttr.Elapsed] has the time between two of them.
	DeviceTimestamps

	// WallclockTimestamps: nanoseconds since 1970 in UTC, by the device's clock as the host has
	// compared it with its own (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).
	WallclockTimestamps
)

// CQAttr are the attributes of a CQ (struct ibv_cq_init_attr_ex).
type CQAttr struct {
	Entries    int          // cqe: how many completions the queue has room for at least
	CompVector int          // comp_vector: which of the device's interrupts raises the events, below DeviceAttr.NumCompVectors
	Timestamps CQTimestamps // wc_flags
}

// CreateCQEx is [Device.CreateCQ] with more attributes (ibv_create_cq_ex). The error is ErrInvalid for
// a vector that the device does not have, and ErrUnsupported for timestamps that it does not have.
//
// On cards a poll of a CQ with timestamps costs several times one without.
func (d *Device) CreateCQEx(attr CQAttr) (*CQ, error) {
	const verb = "create cq on"
	if err := d.check(verb); err != nil {
		return nil, err
	}
	cq := &CQ{object: object{name: d.serial.next("cq")}, dev: d, events: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	if err := d.checkCQ(&attr); err != nil {
		return nil, wrap(verb, d.name, err)
	}
	if err := cq.attach(verb, &d.object); err != nil {
		return nil, err
	}
	p, err := d.createCQ(attr, cq)
	if err != nil {
		cq.detach()
		return nil, wrap(verb, d.name, err)
	}
	cq.p = p
	cq.made(cq)
	return cq, nil
}

func (d *Device) checkCQ(a *CQAttr) error {
	if err := d.checkEntries(a.Entries); err != nil {
		return err
	}
	n := max(d.attr.NumCompVectors, 1) // a device that says nothing has one
	switch {
	case a.CompVector < 0 || a.CompVector >= n:
		return invalidf("completion vector %d: the device has %d of them (num_comp_vectors), counted from 0", a.CompVector, n)
	case a.Timestamps > WallclockTimestamps:
		return invalidf("unknown clock %d of completions", a.Timestamps)
	case a.Timestamps == DeviceTimestamps && d.attr.TimestampMask == 0:
		return Errorf(ErrUnsupported, "the device has no timestamps (completion_timestamp_mask is 0): take the time when you poll")
	}
	return nil
}

func (d *Device) createCQ(a CQAttr, cq *CQ) (ProviderCQ, error) {
	if a.CompVector == 0 && a.Timestamps == NoTimestamps {
		return d.p.CreateCQ(a.Entries, cq)
	}
	p, ok := d.p.(ProviderCQAttr)
	if !ok {
		return nil, Errorf(ErrUnsupported, "the device's CQs have no attributes but their size")
	}
	return p.CreateCQAttr(a, cq)
}

// RawClock returns the time of the device's clock, by which [DeviceTimestamps] tell the time of
// completions (ibv_query_rt_values_ex, IBV_VALUES_MASK_RAW_CLOCK). The error is ErrUnsupported on
// devices without such a clock.
func (d *Device) RawClock() (uint64, error) {
	const verb = "read the clock of"
	if err := d.check(verb); err != nil {
		return 0, err
	}
	p, ok := d.p.(ProviderCQAttr)
	if !ok {
		return 0, wrap(verb, d.name, Errorf(ErrUnsupported, "it has none that programs can read"))
	}
	t, err := p.RawClock()
	return t, wrap(verb, d.name, err)
}

// Elapsed returns the time from one of the device's timestamps to a later one, which came before the
// clock had gone around: see TimestampMask. It is 0 on devices without such a clock.
func (a *DeviceAttr) Elapsed(from, to uint64) time.Duration {
	if a.HCACoreClock == 0 {
		return 0
	}
	hi, lo := bits.Mul64((to-from)&a.TimestampMask, 1e6) // kHz: so many ticks are a million nanoseconds
	if hi >= a.HCACoreClock {
		return math.MaxInt64
	}
	ns, _ := bits.Div64(hi, lo, a.HCACoreClock)
	return time.Duration(min(ns, math.MaxInt64))
}

// ProviderCQAttr is for implementers of providers: a ProviderDevice implements it if its CQs have
// attributes beyond their size.
type ProviderCQAttr interface {
	// CreateCQAttr is ProviderDevice.CreateCQ. The attributes are in range. A clock that the device does not
	// have is ErrUnsupported.
	CreateCQAttr(attr CQAttr, cq *CQ) (ProviderCQ, error)
	// RawClock is that of Device.
	RawClock() (uint64, error)
}
