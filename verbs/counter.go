package verbs

import "slices"

// Counter is a count of a device, a port or a QP, with its name.
type Counter struct {
	Name  string
	Value uint64
}

// Counters are counts in a fixed order. They only grow while their object exists, but for gauges, which
// say how things stand: [DescribeCounter] tells which is which.
//
// Names are those of Linux, as "rdma statistic" shows them for rdma_rxe and for cards, where Linux has
// one. A provider may have names that this package does not know.
type Counters []Counter

// Get returns the value of a counter. ok is false if there is none of that name.
func (cs Counters) Get(name string) (value uint64, ok bool) {
	for i := range cs {
		if cs[i].Name == name {
			return cs[i].Value, true
		}
	}
	return 0, false
}

// Value is Get for a counter that may be missing: it is then 0.
func (cs Counters) Value(name string) uint64 {
	v, _ := cs.Get(name)
	return v
}

// Since returns the growth of each counter since before. Gauges stay as they are, and so does a
// counter that before lacks.
func (cs Counters) Since(before Counters) Counters {
	grown := make(Counters, len(cs))
	for i, c := range cs {
		if d, ok := DescribeCounter(c.Name); !ok || !d.Gauge {
			c.Value -= min(c.Value, before.Value(c.Name))
		}
		grown[i] = c
	}
	return grown
}

// ProviderCounters is for implementers of providers: a ProviderDevice implements it if it counts.
type ProviderCounters interface {
	Counters() (Counters, error)
	// PortCounters is asked for a port from 1 to DeviceAttr.PhysPortCnt.
	PortCounters(port int) (Counters, error)
}

// ProviderQPCounters is for implementers of providers: a ProviderQP implements it if it counts.
type ProviderQPCounters interface {
	Counters() (Counters, error)
}

// Counters returns the device's counters since it was opened: the sums over its QPs, closed ones
// included, the packets that it dropped, and the messages of its connection managers. Of a closed device
// it returns the last counts, without gauges. The error is ErrUnsupported for a device that does not
// count. See [Totals] for devices that are opened more than once.
//
// The counts are those of this program. Other programs that use the same network interface have
// devices of their own; "adverb stat" shows them all.
func (d *Device) Counters() (Counters, error) {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	if d.final != nil {
		return slices.Clone(d.final.counters), d.final.err
	}
	return d.count()
}

// count is Counters of a device that is open. The caller holds countMu.
func (d *Device) count() (Counters, error) {
	const verb = "read counters of"
	p, err := d.providerCounters(verb)
	if err != nil {
		return nil, err
	}
	cs, err := p.Counters()
	if err != nil {
		return nil, wrap(verb, d.name, err)
	}
	managed := slices.Clone(d.managed)
	if m := d.manager.Load(); m != nil {
		managed = managed.plus((*m).Counters())
	}
	return append(cs, managed...), nil
}

// PortCounters returns the counters of a port, counted from 1: those that Linux shows below
// /sys/class/infiniband/<device>/ports/<port>/counters, as far as the device has them. Of a device that
// is closed they are those that it had, without gauges.
func (d *Device) PortCounters(port int) (Counters, error) {
	const verb = "read port counters of"
	if !d.hasPort(port) {
		return nil, d.checkPort(verb, port)
	}
	d.countMu.Lock()
	defer d.countMu.Unlock()
	if d.final != nil {
		f := &d.final.ports[port-1]
		return slices.Clone(f.counters), f.err
	}
	return d.countPort(port)
}

// countPort is PortCounters of a device that is open. The caller holds countMu.
func (d *Device) countPort(port int) (Counters, error) {
	const verb = "read port counters of"
	p, err := d.providerCounters(verb)
	if err != nil {
		return nil, err
	}
	cs, err := p.PortCounters(port)
	return cs, wrap(verb, d.name, err)
}

// providerCounters returns the counters of the provider, also while the device closes.
func (d *Device) providerCounters(verb string) (ProviderCounters, error) {
	if err := d.checkAttr(verb); err != nil {
		return nil, err
	}
	p, ok := d.p.(ProviderCounters)
	if !ok {
		return nil, wrap(verb, d.name, noCounters)
	}
	return p, nil
}

// Counters returns the QP's counters since it was created. RESET does not set the counts back. The
// error is ErrUnsupported for a device that does not count.
func (qp *QP) Counters() (Counters, error) {
	const verb = "read counters of"
	if err := qp.check(verb); err != nil {
		return nil, err
	}
	p, ok := qp.p.(ProviderQPCounters)
	if !ok {
		return nil, wrap(verb, qp.name, noCounters)
	}
	cs, err := p.Counters()
	return cs, wrap(verb, qp.name, err)
}

var noCounters = Errorf(ErrUnsupported, "the device has no counters that a program can read")
