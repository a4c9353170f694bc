// Package adverbprom gives the counters of RDMA devices to Prometheus:
//
//	prometheus.MustRegister(adverbprom.New())
//
// Each counter that package verbs describes becomes a metric, such as adverb_sent_pkts_total with the
// label device, or adverb_port_xmit_packets_total with the labels device and port. Gauges have no _total.
// A counter never falls while the program runs: what a device had counted when it was closed stays in it.
// With WithQueuePairs there is a metric for each QP as well, such as adverb_qp_retrans_pkts_total, with the
// labels device, qp and type.
//
// The package is a module of its own, so that programs which do not use Prometheus do not get it.
package adverbprom

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adverb-rdma/adverb/verbs"
)

// namespace begins the names of all metrics.
const namespace = "adverb"

// Collector is a prometheus.Collector. It reads the counters when it is asked for them; in between it
// costs nothing.
type Collector struct {
	totals  func() []verbs.DeviceTotals
	devices func() []*verbs.Device // for what is open
	qps     bool

	mu    sync.Mutex
	descs map[descKey]*desc
}

type descKey struct{ subsystem, name string }

type desc struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

var _ prometheus.Collector = (*Collector)(nil)

// Option changes what a Collector collects.
type Option func(*Collector)

// WithDevices collects the counters of these devices, also when they are closed. Without it they are those
// of all devices that verbs.Open has opened since the program began: see [verbs.Totals].
func WithDevices(devices ...*verbs.Device) Option {
	return func(c *Collector) {
		c.totals = func() []verbs.DeviceTotals { return verbs.TotalsOf(devices...) }
		c.devices = func() []*verbs.Device { return devices }
	}
}

// WithQueuePairs collects the counters of each QP too. Each QP makes some fifty time series, which end with it:
// a program with many short connections does without.
func WithQueuePairs() Option { return func(c *Collector) { c.qps = true } }

// New makes a Collector.
func New(options ...Option) *Collector {
	c := &Collector{totals: verbs.Totals, devices: verbs.OpenDevices, descs: map[descKey]*desc{}}
	for _, o := range options {
		o(c)
	}
	return c
}

// Describe implements prometheus.Collector. It sends nothing: which counters there are depends on the
// devices, so the collector is an unchecked one.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Devices that do not count have no counters, and devices that are
// closed no gauges. If the program has opened a device twice, perhaps by package rdmacm, or one time after the
// other, the counts are added up.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ch := &samples{byKey: map[sampleKey]*sample{}}
	defer ch.send(out)
	for _, t := range c.totals() {
		c.send(ch, "", t.Counters, []string{"device"}, t.Device)
		for i, cs := range t.Ports {
			c.send(ch, "port", prefixed(cs), []string{"device", "port"}, t.Device, strconv.Itoa(i+1))
		}
	}
	for _, d := range c.devices() {
		r, err := d.Resources()
		if err != nil {
			continue
		}
		c.open(ch, d.Name(), &r)
		if !c.qps {
			continue
		}
		for i := range r.QP {
			if cs, err := r.QP[i].Counters(); err == nil {
				c.send(ch, "qp", cs, []string{"device", "qp", "type"}, d.Name(), r.QP[i].QPN.String(), r.QP[i].Type.String())
			}
		}
	}
}

// prefixed gives the port counters without the prefix that the subsystem gives them again.
func prefixed(cs verbs.Counters) verbs.Counters {
	const port = "port_"
	for i := range cs {
		if len(cs[i].Name) > len(port) && cs[i].Name[:len(port)] == port {
			cs[i].Name = cs[i].Name[len(port):]
		}
	}
	return cs
}

// open sends how many objects of each kind are open.
func (c *Collector) open(ch *samples, device string, r *verbs.Resources) {
	d := c.desc("", "open_objects", "objects that are open, by kind", []string{"device", "kind"}, true)
	for _, k := range []struct {
		kind string
		n    int
	}{
		{"pd", len(r.PD)}, {"cq", len(r.CQ)}, {"qp", len(r.QP)}, {"mr", len(r.MR)}, {"mw", len(r.MW)}, {"srq", len(r.SRQ)}, {"ah", r.AH},
		{"cm_id", len(r.CMID)},
	} {
		ch.add(d, float64(k.n), device, k.kind)
	}
}

// send sends a metric for each counter.
func (c *Collector) send(ch *samples, subsystem string, cs verbs.Counters, labels []string, values ...string) {
	for _, k := range cs {
		info, ok := verbs.DescribeCounter(k.Name)
		if !ok && subsystem == "port" {
			info, ok = verbs.DescribeCounter("port_" + k.Name)
		}
		if !ok {
			info.Help = "a counter of the device's provider"
		}
		d := c.desc(subsystem, k.Name, info.Help, labels, info.Gauge)
		ch.add(d, float64(k.Value), values...)
	}
}

// samples are the metrics of one Collect, in the order of their first values.
type samples struct {
	all   []*sample
	byKey map[sampleKey]*sample
}

type sample struct {
	*desc
	labels []string
	value  float64
}

// sampleKey tells samples apart. The labels are joined by a byte that none has.
type sampleKey struct {
	desc   *desc
	labels string
}

// add adds to the value of a metric.
func (s *samples) add(d *desc, value float64, labels ...string) {
	key := sampleKey{d, strings.Join(labels, "\x00")}
	if s.byKey[key] == nil {
		s.byKey[key] = &sample{desc: d, labels: labels}
		s.all = append(s.all, s.byKey[key])
	}
	s.byKey[key].value += value
}

func (s *samples) send(out chan<- prometheus.Metric) {
	for _, m := range s.all {
		out <- prometheus.MustNewConstMetric(m.Desc, m.kind, m.value, m.labels...)
	}
}

// desc returns the description of a metric. It is made once.
func (c *Collector) desc(subsystem, name, help string, labels []string, gauge bool) *desc {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := descKey{subsystem, name}
	d := c.descs[key]
	if d == nil {
		d = &desc{kind: prometheus.GaugeValue}
		if !gauge {
			d.kind = prometheus.CounterValue
			name += "_total"
		}
		d.Desc = prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
		c.descs[key] = d
	}
	return d
}
