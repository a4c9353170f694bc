package verbs

import "slices"

// DeviceTotals are the sums of the counters of all devices of one name.
type DeviceTotals struct {
	Device   string
	Counters Counters
	Ports    []Counters // of each port, from the first on
}

// Totals returns the counters of the devices that [Open] has opened since the program began, closed ones included: a
// device that is open twice, perhaps by package rdmacm, or one after the other, has one entry. So the counts only grow
// while the program runs. Gauges are those of the devices that are open. The order is that of the first opening. Devices
// that do not count have no counters.
func Totals() []DeviceTotals {
	openMu.Lock()
	open := slices.Clone(opened)
	all := make([]DeviceTotals, len(past))
	for i, t := range past {
		all[i] = DeviceTotals{t.Device, slices.Clone(t.Counters), nil}
		for _, cs := range t.Ports {
			all[i].Ports = append(all[i].Ports, slices.Clone(cs))
		}
	}
	openMu.Unlock()
	// A device that closes meanwhile still tells its counters, and is not in all yet: it counts once.
	return addDevices(all, open)
}

// TotalsOf is Totals for some devices, however they were made.
func TotalsOf(devices ...*Device) []DeviceTotals { return addDevices(nil, devices) }

func addDevices(all []DeviceTotals, devices []*Device) []DeviceTotals {
	for _, d := range devices {
		var t *DeviceTotals
		all, t = totalsFor(all, d.Name())
		t.add(d)
	}
	return all
}

// totalsFor returns the entry of a name, which it appends if there is none.
func totalsFor(all []DeviceTotals, name string) ([]DeviceTotals, *DeviceTotals) {
	i := slices.IndexFunc(all, func(t DeviceTotals) bool { return t.Device == name })
	if i < 0 {
		i, all = len(all), append(all, DeviceTotals{Device: name})
	}
	return all, &all[i]
}

// add adds the counters of a device. A device without counters adds nothing.
func (t *DeviceTotals) add(d *Device) {
	if cs, err := d.Counters(); err == nil {
		t.Counters = t.Counters.plus(cs)
	}
	for port := 1; d.hasPort(port); port++ {
		if len(t.Ports) < port {
			t.Ports = append(t.Ports, nil)
		}
		if cs, err := d.PortCounters(port); err == nil {
			t.Ports[port-1] = t.Ports[port-1].plus(cs)
		}
	}
}

// plus adds counters up by their names, into cs as far as they are there.
func (cs Counters) plus(more Counters) Counters {
	for i, c := range more {
		if i >= len(cs) || cs[i].Name != c.Name { // mostly they have one order
			if i = slices.IndexFunc(cs, func(o Counter) bool { return o.Name == c.Name }); i < 0 {
				cs = append(cs, c)
				continue
			}
		}
		cs[i].Value += c.Value
	}
	return cs
}

// withoutGauges returns the counters that are none, in their order.
func (cs Counters) withoutGauges() Counters {
	return slices.DeleteFunc(slices.Clone(cs), func(c Counter) bool {
		d, _ := DescribeCounter(c.Name)
		return d.Gauge
	})
}

// finalCounts are the counters of a device when it closed.
type finalCounts struct {
	counters Counters
	err      error // why there are none
	ports    []finalPort
}

type finalPort struct {
	counters Counters
	err      error
}

// keepCounts keeps the device's counters, since its provider tells nothing after Close.
func (d *Device) keepCounts() {
	d.countMu.Lock()
	defer d.countMu.Unlock()
	cs, err := d.count()
	f := &finalCounts{counters: cs.withoutGauges(), err: err}
	for port := 1; d.hasPort(port); port++ {
		cs, err := d.countPort(port)
		f.ports = append(f.ports, finalPort{cs.withoutGauges(), err})
	}
	d.final = f
}
