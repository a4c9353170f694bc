// Package promtext writes what programs tell of their devices (package watch) in Prometheus' text format, for a server
// outside of these programs. The names and meanings of metrics are those of package adverbprom, which a program has
// inside of it: graphs fit both. Here each sample has the labels pid and command besides.
package promtext

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// ContentType is the media type of what Write writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

const namespace = "adverb"

// MaxSamples is how many samples of one program are written. What is beyond it is left out, and counted in
// adverb_programs with the state "cut": no program can make an answer as long as it likes.
const MaxSamples = 200_000

// kinds are those of objects, as watch.Device.Count names them.
var kinds = []string{"pd", "cq", "qp", "mr", "mw", "srq", "ah", "cm_id"}

// Write writes the metrics of programs. silent is how many others did not answer. The names in all are fit to print:
// see watch.Clean. A counter that verbs.DescribeCounter does not know is left out, since nobody says whether it may fall.
func Write(w io.Writer, all []watch.Process, silent int) error {
	s := set{byName: map[string]*family{}}
	cut := 0
	for i := range all {
		if !s.program(&all[i]) {
			cut++
		}
	}
	programs := func(state string, n int) {
		s.add(namespace+"_programs", "programs with open devices that were asked, by how it went", true, label("state", state), uint64(n))
	}
	programs("answered", len(all))
	programs("silent", silent)
	programs("cut", cut)
	return s.write(w)
}

// set is all metrics, in the order of their first samples.
type set struct {
	families []*family
	byName   map[string]*family
	left     int // samples that the program may still have
}

// family is a metric with its samples. Those of the same labels are added up: a process of another PID namespace has
// the ID 0, and there may be several.
type family struct {
	name, help string
	gauge      bool
	labels     []string
	values     map[string]uint64
}

// program adds what one program told. It reports whether all of it fitted.
func (s *set) program(p *watch.Process) bool {
	s.left = MaxSamples
	who := label("pid", strconv.Itoa(p.PID)) + "," + label("command", p.Command)
	for i := range p.Devices {
		d := &p.Devices[i]
		labels := who + "," + label("device", d.Name)
		s.counters("", d.Counters, labels)
		s.counters("port", d.Port, labels+","+label("port", "1"))
		for _, kind := range kinds {
			if n, ok := d.Count[kind]; ok && n >= 0 {
				s.sample(namespace+"_open_objects", "objects that are open, by kind", true, labels+","+label("kind", kind), uint64(n))
			}
		}
		for j := range d.QP {
			q := &d.QP[j]
			s.counters("qp", q.Counters, labels+","+label("qp", verbs.QPN(q.QPN).String())+","+label("type", watch.Clean(q.Type)))
		}
	}
	return s.left >= 0
}

// counters adds a sample for each counter that is known, in the order of the list of all.
func (s *set) counters(subsystem string, values map[string]uint64, labels string) {
	if len(values) == 0 {
		return
	}
	for _, c := range known {
		v, ok := values[c.Name]
		if !ok {
			continue
		}
		name := namespace + "_"
		if subsystem != "" {
			name += subsystem + "_"
		}
		if subsystem == "port" {
			name += strings.TrimPrefix(c.Name, "port_")
		} else {
			name += c.Name
		}
		s.sample(name, c.Help, c.Gauge, labels, v)
	}
}

var known = verbs.CounterDescs()

// sample adds a sample of a program, while it may have more.
func (s *set) sample(name, help string, gauge bool, labels string, v uint64) {
	if s.left--; s.left >= 0 {
		s.add(name, help, gauge, labels, v)
	}
}

func (s *set) add(name, help string, gauge bool, labels string, v uint64) {
	if !gauge {
		name += "_total"
	}
	f := s.byName[name]
	if f == nil {
		f = &family{name: name, help: help, gauge: gauge, values: map[string]uint64{}}
		s.byName[name] = f
		s.families = append(s.families, f)
	}
	if _, ok := f.values[labels]; !ok {
		f.labels = append(f.labels, labels)
	}
	f.values[labels] += v
}

func (s *set) write(to io.Writer) error {
	w := bufio.NewWriter(to)
	for _, f := range s.families {
		kind := "counter"
		if f.gauge {
			kind = "gauge"
		}
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, kind)
		for _, l := range f.labels {
			fmt.Fprintf(w, "%s{%s} %d\n", f.name, l, f.values[l])
		}
	}
	return w.Flush()
}

// escapes are those of label values.
var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func label(name, value string) string { return name + `="` + escapes.Replace(value) + `"` }
