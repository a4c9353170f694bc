package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/verbs"
)

// Process is a program's answer. The tool prints the same JSON.
type Process struct {
	PID     int      `json:"pid"`     // as the kernel says; 0 for one in another PID namespace
	Command string   `json:"command"` // the name of the program's file
	Devices []Device `json:"devices"`

	// Alone says why the program shares neither memory nor addresses with others of its user, if it does not.
	Alone string `json:"alone,omitempty"`

	opens map[opening]int // where add counts them
}

// opening is a device that an owner has open.
type opening struct {
	device string
	owner  Owner
}

// Device is an open device of a program.
type Device struct {
	Name   string `json:"device"`
	Netdev string `json:"netdev"`
	Owner  Owner  `json:"owner,omitzero"` // on the way to the client, which tells it by the Process

	Counters map[string]uint64 `json:"counters,omitempty"`
	Port     map[string]uint64 `json:"port_counters,omitempty"`

	Count map[string]int `json:"count,omitempty"` // how many objects of each kind are open
	QP    []QP           `json:"qp,omitempty"`
	CQ    []CQ           `json:"cq,omitempty"`
	MR    []MR           `json:"mr,omitempty"`
	MW    []MW           `json:"mw,omitempty"`
	SRQ   []SRQ          `json:"srq,omitempty"`
	PD    []string       `json:"pd,omitempty"`
	CMID  []CMID         `json:"cm_id,omitempty"`
}

// QP is an open QP.
type QP struct {
	QPN     uint32 `json:"lqpn"`
	Type    string `json:"type"`
	State   string `json:"state"`
	DestQPN uint32 `json:"rqpn,omitempty"`
	DestGID string `json:"rgid,omitempty"`
	PathMTU int    `json:"path_mtu,omitempty"` // bytes
	RQPSN   uint32 `json:"rq_psn,omitempty"`
	SQPSN   uint32 `json:"sq_psn,omitempty"`
	PD      string `json:"pd"`
	SendCQ  string `json:"send_cq"`
	RecvCQ  string `json:"recv_cq"`
	SRQ     string `json:"srq,omitempty"`
	Carrier string `json:"carrier,omitempty"`

	Counters map[string]uint64 `json:"counters,omitempty"`
}

// CQ is an open CQ.
type CQ struct {
	Name    string `json:"cq"`
	Entries int    `json:"cqe"`
}

// MR is an open memory region.
type MR struct {
	LKey   uint32 `json:"lkey"`
	RKey   uint32 `json:"rkey"`
	Addr   uint64 `json:"iova"`
	Length int    `json:"mrlen"`
	Access string `json:"access"`
	PD     string `json:"pd"`
}

// MW is a memory window.
type MW struct {
	RKey uint32 `json:"rkey"`
	Type string `json:"type"`
	PD   string `json:"pd"`
}

// SRQ is a shared receive queue.
type SRQ struct {
	Name   string `json:"srq"`
	MaxWR  int    `json:"max_wr"`
	MaxSGE int    `json:"max_sge"`
	PD     string `json:"pd"`
	SRQN   uint32 `json:"srqn,omitempty"` // of XRC
	CQ     string `json:"cq,omitempty"`   // of XRC
}

// CMID is an ID of the connection manager.
type CMID struct {
	QPN    uint32 `json:"lqpn,omitempty"`
	Type   string `json:"type,omitempty"`
	State  string `json:"state"`
	Local  string `json:"src_addr"`
	Remote string `json:"dst_addr,omitempty"`
}

// Self is this program's answer.
func Self(w Want) Process {
	p := Process{PID: os.Getpid(), Devices: []Device{}}
	if len(os.Args) > 0 {
		p.Command = filepath.Base(os.Args[0])
	}
	if err := user.Self(); err != nil {
		p.Alone = err.Error()
	}
	of := make(map[Owner][]*verbs.Device)
	for _, dev := range verbs.OpenDevices() {
		d := Device{Name: dev.Name(), Netdev: dev.Info().Netdev, Owner: ownerOf(dev)}
		r, err := dev.Resources()
		if err != nil {
			continue // closed meanwhile
		}
		if w == WantRes {
			d.list(&r)
		} else {
			d.count(&r, w)
		}
		p.add(d)
		of[d.Owner] = append(of[d.Owner], dev)
	}
	switch _, own := of[Owner{}]; {
	case w == WantRes:
	case own && len(of) == 1: // with those from earlier opens
		p.count(Owner{}, verbs.Totals())
	default:
		for o, devices := range of {
			p.count(o, verbs.TotalsOf(devices...))
		}
	}
	return p
}

// count fills in the counters of the devices of an owner.
func (p *Process) count(o Owner, totals []verbs.DeviceTotals) {
	for _, t := range totals {
		i := slices.IndexFunc(p.Devices, func(d Device) bool { return d.Name == t.Device && d.Owner == o })
		if i < 0 { // the device is closed
			continue
		}
		d := &p.Devices[i]
		if t.Counters != nil {
			d.Counters = toMap(t.Counters)
		}
		if len(t.Ports) > 0 && t.Ports[0] != nil {
			d.Port = toMap(t.Ports[0])
		}
	}
}

// add adds a device. If the program has opened it before, perhaps by package rdmacm, the two are one, as "rdma res" has
// it: the user asks for a device, and need not know how often it is open. Each open names its objects from 1 on, so
// those of a later one get its number, as in "pd1#2".
func (p *Process) add(d Device) {
	if p.opens == nil {
		p.opens = map[opening]int{}
	}
	is := opening{d.Name, d.Owner}
	if p.opens[is]++; p.opens[is] > 1 {
		d.rename(fmt.Sprintf("#%d", p.opens[is]))
	}
	for i := range p.Devices {
		if o := &p.Devices[i]; o.Name == d.Name && o.Owner == d.Owner {
			for what, n := range d.Count {
				o.Count[what] += n
			}
			o.QP, o.CQ, o.MR = append(o.QP, d.QP...), append(o.CQ, d.CQ...), append(o.MR, d.MR...)
			o.MW, o.SRQ, o.PD = append(o.MW, d.MW...), append(o.SRQ, d.SRQ...), append(o.PD, d.PD...)
			o.CMID = append(o.CMID, d.CMID...)
			return
		}
	}
	p.Devices = append(p.Devices, d)
}

// rename appends to the names of objects, wherever they stand. The lists are this device's own.
func (d *Device) rename(suffix string) {
	name := func(s *string) {
		if *s != "" {
			*s += suffix
		}
	}
	for i := range d.PD {
		name(&d.PD[i])
	}
	for i := range d.CQ {
		name(&d.CQ[i].Name)
	}
	for i := range d.QP {
		q := &d.QP[i]
		name(&q.PD)
		name(&q.SendCQ)
		name(&q.RecvCQ)
		name(&q.SRQ)
	}
	for i := range d.MR {
		name(&d.MR[i].PD)
	}
	for i := range d.MW {
		name(&d.MW[i].PD)
	}
	for i := range d.SRQ {
		name(&d.SRQ[i].Name)
		name(&d.SRQ[i].PD)
		name(&d.SRQ[i].CQ)
	}
}

// count fills in the numbers of objects, and the counters of each QP.
func (d *Device) count(r *verbs.Resources, w Want) {
	d.Count = countOf(r)
	if w != WantQPStat {
		return
	}
	for _, q := range first(r.QP, maxQPCounters) {
		cs, err := q.Counters()
		if err != nil {
			continue
		}
		s := qpOf(&q)
		s.Counters = toMap(cs)
		d.QP = append(d.QP, s)
	}
}

func countOf(r *verbs.Resources) map[string]int {
	return map[string]int{
		"pd": len(r.PD), "cq": len(r.CQ), "qp": len(r.QP), "mr": len(r.MR), "mw": len(r.MW), "srq": len(r.SRQ), "ah": r.AH, "cm_id": len(r.CMID),
	}
}

// list fills in the open objects.
func (d *Device) list(r *verbs.Resources) {
	d.Count = countOf(r)
	d.PD = slices.Clone(first(r.PD, maxObjects))
	for _, c := range first(r.CQ, maxObjects) {
		d.CQ = append(d.CQ, CQ(c))
	}
	for _, q := range first(r.QP, maxObjects) {
		d.QP = append(d.QP, qpOf(&q))
	}
	for _, m := range first(r.MR, maxObjects) {
		d.MR = append(d.MR, MR{uint32(m.LKey), uint32(m.RKey), m.Addr, m.Length, m.Access.String(), m.PD})
	}
	for _, m := range first(r.MW, maxObjects) {
		d.MW = append(d.MW, MW{uint32(m.RKey), m.Type.String(), m.PD})
	}
	for _, s := range first(r.SRQ, maxObjects) {
		d.SRQ = append(d.SRQ, SRQ{s.Name, s.MaxWR, s.MaxSGE, s.PD, uint32(s.Num), s.CQ})
	}
	for _, c := range first(r.CMID, maxObjects) {
		id := CMID{QPN: uint32(c.QPN), State: c.State, Local: c.Local.String()}
		if c.Type != 0 {
			id.Type = c.Type.String()
		}
		if c.Remote.IsValid() {
			id.Remote = c.Remote.String()
		}
		d.CMID = append(d.CMID, id)
	}
}

func qpOf(q *verbs.QPInfo) QP {
	s := QP{
		QPN: uint32(q.QPN), Type: q.Type.String(), State: q.State.String(), DestQPN: uint32(q.DestQPN), PathMTU: q.PathMTU.Bytes(),
		RQPSN: uint32(q.RQPSN), SQPSN: uint32(q.SQPSN), PD: q.PD, SendCQ: q.SendCQ, RecvCQ: q.RecvCQ, SRQ: q.SRQ,
		Carrier: q.Carrier,
	}
	if !q.DestGID.IsZero() {
		s.DestGID = q.DestGID.String()
	}
	return s
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

func toMap(cs verbs.Counters) map[string]uint64 {
	m := make(map[string]uint64, len(cs))
	for _, c := range cs {
		m[c.Name] = c.Value
	}
	return m
}

// Clean makes a name that another program chose fit for a terminal: characters that are not printable become question
// marks, and the name is cut after 64 characters.
func Clean(s string) string { return clean(s, 64) }

// CleanText is Clean for a sentence, which is cut after 256 characters.
func CleanText(s string) string { return clean(s, 256) }

func clean(s string, limit int) string {
	n := 0
	s = strings.Map(func(r rune) rune {
		if n++; n > limit {
			return -1
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	return s
}
