package ladder

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/internal/theme"
)

// Diagnosis is what is known of captures besides their packets.
type Diagnosis struct {
	Verdict  string // in a sentence or two; empty if there was no diagnosis
	Findings []Finding
}

// Finding is what a diagnosis says of a capture.
type Finding struct {
	File      int      `json:"-"` // the capture: they count from 0, in the order of Read
	Severity  string   `json:"severity"`
	Certainty string   `json:"certainty"`
	Title     string   `json:"title"`
	Where     string   `json:"where,omitempty"`
	Words     string   `json:"words,omitempty"`
	Remedy    []string `json:"remedy,omitempty"`
	WrongIf   string   `json:"wrongIf,omitempty"`
	Filter    string   `json:"filter,omitempty"`
	Count     int      `json:"count"`
	Frames    []int    `json:"-"`     // in that capture
	Items     []int    `json:"items"` // set by HTML: the same as places on the page
}

//go:embed page/*.js page/*.css page/*.html
var pageFiles embed.FS

// scripts are the modules of the page, in the order of their use.
var scripts = []string{"decode", "model", "memory", "charts", "draw", "panels", "main"}

// pageHead is what a page knows besides the columns.
type pageHead struct {
	Title    string         `json:"title"`
	Ends     []pageEnd      `json:"ends"`
	Streams  []packedStream `json:"streams"`
	Opcodes  []packedOpcode `json:"opcodes"`
	Regions  []packedRegion `json:"regions"`
	Texts    []string       `json:"texts"`
	Columns  []int          `json:"columns"` // lengths
	Packets  int            `json:"packets"` // and events
	Start    int64          `json:"start"`   // of the first, ns
	Verdict  string         `json:"verdict,omitempty"`
	Findings []Finding      `json:"findings"`
	Notes    []string       `json:"notes"`
}

type pageEnd struct {
	Letter string `json:"letter"`
	Name   string `json:"name"`
}

// HTML writes the packets as a page of one file, which needs no network: a ladder to scroll, filter and search, with
// charts, the remote memory and the findings of a diagnosis. Of the options the limit does
// not count: a page has room for all packets that a Collector reads.
func (c *Collector) HTML(w io.Writer, title string, o Options, d Diagnosis) error {
	head := pageHead{Title: title, Verdict: d.Verdict, Ends: []pageEnd{}, Findings: []Finding{}, Notes: []string{}}
	cols := newColumns()
	s, items := c.items(o, cols)
	for _, r := range items {
		cols.add(r)
	}
	for _, ref := range s.followed.order {
		if ref.requests == nil {
			continue
		}
		i, ok := cols.streamOf[ref.id]
		if to, both := cols.streamOf[ref.requests.id]; ok && both {
			cols.streams[i].Answers = to
		}
	}
	cols.join()
	for i := range s.ladder.Ends {
		head.Ends = append(head.Ends, pageEnd{Letter(i), s.ladder.Ends[i].Name})
	}
	head.Notes = append(head.Notes, c.allNotes(s.skipped, s.ladder.Total)...)
	head.Findings = append(head.Findings, placed(d.Findings, s.all)...)
	head.Streams, head.Opcodes, head.Regions, head.Texts, head.Packets = cols.streams, cols.opcodes, cols.regions, cols.texts.list, cols.n
	head.Start = cols.start
	all, lengths := cols.joined()
	head.Columns = lengths
	return writePage(w, &head, all)
}

// items returns the packets that are not left out, with the events of devices among them. It finds the regions.
func (c *Collector) items(o Options, cols *columns) (s resolved, list []*record) {
	s = c.resolve()
	f := newFilter(s.all, s.followed, o)
	var shown []*record
	for i := range s.all {
		r := &s.all[i]
		r.place = noPlace
		if r.twin {
			continue
		}
		s.ladder.Total++
		if f.wants(r) {
			shown = append(shown, r)
		} else {
			s.skipped++
		}
	}
	cols.findRegions(shown)
	c.extend(cols.regions)
	list = merge(shown, f.events(c.eventRecords(&s, cols.regions)))
	for i, r := range list {
		r.place = int32(i)
	}
	return s, list
}

// noPlace is the place of a packet that the page does not have.
const noPlace = -1

// placed gives findings the places of their frames. Of a train that is the first packet with a mark.
func placed(findings []Finding, all []record) []Finding {
	type frameOf struct{ file, frame int }
	wanted, marked := map[frameOf]int{}, map[frameOf]bool{}
	for _, f := range findings {
		for _, n := range f.Frames {
			wanted[frameOf{f.File, n}] = noPlace
		}
	}
	for i := range all {
		r := &all[i]
		key := frameOf{int(r.file), r.frame}
		was, ok := wanted[key]
		if !ok {
			continue
		}
		at := i
		for all[at].twin {
			at = all[at].original
		}
		if was == noPlace || len(all[at].Marks) > 0 && !marked[key] {
			wanted[key], marked[key] = int(all[at].place), len(all[at].Marks) > 0
		}
	}
	list := make([]Finding, len(findings))
	for i, f := range findings {
		f.Items = []int{}
		for _, n := range f.Frames {
			if at := wanted[frameOf{f.File, n}]; at != noPlace {
				f.Items = append(f.Items, at)
			}
		}
		list[i] = f
	}
	return list
}

// writePage writes the page. A policy in it forbids the page everything but its own script and style, whatever the
// texts of a capture are.
func writePage(w io.Writer, head *pageHead, columns []byte) error {
	about, err := json.Marshal(head) // escapes <, > and &
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z, err := flate.NewWriter(&packed, flate.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(columns); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	script := "'use strict';\n(() => {\n"
	for _, name := range scripts {
		script += pageFile(name + ".js")
	}
	script += "start();\n})();\n"
	style := theme.Colors(":root") + ":root{--mono:" + theme.Mono + ";--sans:" + theme.Sans + "}\n" + pageFile("page.css")
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'", sourceHash(script), sourceHash(style))
	_, err = strings.NewReplacer(
		"{{policy}}", policy,
		"{{title}}", html.EscapeString(head.Title),
		"{{style}}", style,
		"{{head}}", string(about),
		"{{columns}}", base64.StdEncoding.EncodeToString(packed.Bytes()),
		"{{script}}", script,
	).WriteString(w, pageFile("page.html"))
	return err
}

func pageFile(name string) string {
	b, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // of an embedded file
	}
	return string(b)
}

// sourceHash names a script or a style for a policy.
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
