package ladder

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/internal/theme"
)

// The measures of a picture, in pixels.
const (
	leastWidth = 960
	svgMargin  = 12
	lineHeight = 17
	rowSpace   = 5   // between two rows
	frameRight = 48  // where frames end
	timeRight  = 134 // where times end
	firstLine  = 158 // of the first end
	linesWidth = 210 // from the first end to the last, of two; more have more
	wordsLeft  = 22  // from the last end
	charTenths = 73  // of the width of a character of the font
	leastChars = 60  // that words have room for
	slope      = 7   // of an arrow whose arrival was captured
)

// style has the colours for light and for dark surroundings.
var style = "<style>\n" + theme.Colors("svg") + `.ground{fill:var(--ground)}
text{font:12px ` + theme.Mono + `;fill:var(--ink)}
.faint{fill:var(--faint)}.end{font-weight:bold}.number{text-anchor:end;fill:var(--faint)}
.line{stroke:var(--line);stroke-dasharray:2 3}
.request{stroke:var(--data)}.answer{stroke:var(--answer)}.lost,.repeat,.refusal{stroke:var(--trouble)}.wait{stroke:var(--wait)}
path{fill:none;stroke-width:1.6}.repeat{stroke-dasharray:6 3}
.trouble{fill:var(--trouble)}.waiting{fill:var(--wait)}
</style>
`

// picture writes an SVG.
type picture struct {
	strings.Builder
	l     *Ladder
	width int
	step  int // between the lines of two ends
	y     int
}

// SVG writes the ladder as a picture of its own, for light and dark surroundings. Its texts are texts, so
// that they can be read aloud.
func (l *Ladder) SVG(w io.Writer, title string) error {
	p := &picture{l: l}
	if n := len(l.Ends) - 1; n > 0 {
		p.step = max(linesWidth/n, 60)
	}
	p.width = max(leastWidth, p.right()+leastChars*charTenths/10+svgMargin)
	p.y = svgMargin + lineHeight
	body := p.rows()
	var all strings.Builder
	height := p.y + svgMargin
	fmt.Fprintf(&all, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"list\" aria-labelledby=\"title about\">\n", p.width, height, p.width, height)
	fmt.Fprintf(&all, "<title id=\"title\">%s</title>\n<desc id=\"about\">%s</desc>\n", escape(title), escape(p.about()))
	all.WriteString(style)
	fmt.Fprintf(&all, "<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n%s</svg>\n", p.width, height, body)
	_, err := io.WriteString(w, all.String())
	return err
}

// about describes the picture.
func (p *picture) about() string {
	var ends []string
	for i := range p.l.Ends {
		ends = append(ends, Letter(i)+" is "+p.l.Ends[i].Name)
	}
	return fmt.Sprintf("A ladder of %s, in the order of time, between %s: %s.", count(p.l.drawn(), "packet"), count(len(p.l.Ends), "end"), strings.Join(ends, "; "))
}

// drawn is how many packets the rows have.
func (l *Ladder) drawn() (n int) {
	for i := range l.Rows {
		n += l.Rows[i].Count
	}
	return n
}

func (p *picture) x(end int) int { return firstLine + end*p.step }

// right is where words begin.
func (p *picture) right() int { return p.x(max(0, len(p.l.Ends)-1)) + wordsLeft }

// words is how many characters a line of words has room for.
func (p *picture) words() int {
	return 10 * (p.width - svgMargin - p.right()) / charTenths
}

// rows writes all rows, and sets y to their end.
func (p *picture) rows() string {
	var head strings.Builder
	for i := range p.l.Ends {
		fmt.Fprintf(&head, "<text x=\"%d\" y=\"%d\"><tspan class=\"end\">%s</tspan> %s</text>\n", svgMargin, p.y, Letter(i), escape(p.l.Ends[i].Name))
		p.y += lineHeight
	}
	if len(p.l.Rows) > 0 {
		p.y += rowSpace
		fmt.Fprintf(&head, "<text class=\"number\" x=\"%d\" y=\"%d\">frame</text><text class=\"number\" x=\"%d\" y=\"%d\">seconds</text>\n", frameRight, p.y, timeRight, p.y)
		for i := range p.l.Ends {
			fmt.Fprintf(&head, "<text class=\"end\" x=\"%d\" y=\"%d\" text-anchor=\"middle\" aria-hidden=\"true\">%s</text>\n", p.x(i), p.y, Letter(i))
		}
	}
	top := p.y + 5
	p.y += lineHeight + rowSpace
	for i := range p.l.Rows {
		p.row(&p.l.Rows[i])
	}
	if len(p.l.Rows) > 0 {
		for i := range p.l.Ends {
			fmt.Fprintf(&head, "<path class=\"line\" d=\"M%d %dV%d\" aria-hidden=\"true\"/>\n", p.x(i), top, p.y-lineHeight+2)
		}
	} else {
		p.l.Notes = append([]string{"No packets to draw."}, p.l.Notes...)
	}
	for _, n := range p.l.Notes {
		for _, line := range wrap(n, 10*(p.width-2*svgMargin)/charTenths) {
			fmt.Fprintf(p, "<text class=\"faint\" x=\"%d\" y=\"%d\">%s</text>\n", svgMargin, p.y, escape(line))
			p.y += lineHeight
		}
	}
	p.y -= lineHeight
	return head.String() + p.String()
}

func (p *picture) row(r *Row) {
	if r.Silence > 0 {
		fmt.Fprintf(p, "<text class=\"faint\" x=\"%d\" y=\"%d\">… %s pass …</text>\n", p.right(), p.y, span(r.Silence))
		p.y += lineHeight + rowSpace
	}
	fmt.Fprintf(p, "<g role=\"listitem\"><text class=\"number\" x=\"%d\" y=\"%d\">%d</text><text class=\"number\" x=\"%d\" y=\"%d\">%s</text>\n", frameRight, p.y, r.Frame, timeRight, p.y, clock(r.At))
	p.arrow(r)
	p.text("", r.Words())
	for _, m := range r.Marks {
		class := "trouble"
		if m.Kind == MarkWait || m.Kind == MarkNote || m.Kind == MarkGap || m.Kind == MarkLate {
			class = "waiting"
		}
		p.text(class, m.Text)
	}
	p.WriteString("</g>\n")
	p.y += rowSpace
}

// text writes lines of words.
func (p *picture) text(class, words string) {
	for _, line := range wrap(words, p.words()) {
		at := ""
		if class != "" {
			at = fmt.Sprintf(" class=\"%s\"", class)
		}
		fmt.Fprintf(p, "<text%s x=\"%d\" y=\"%d\">%s</text>\n", at, p.right(), p.y, escape(line))
		p.y += lineHeight
	}
}

// arrow draws a packet. A lost one ends in a cross on its way.
func (p *picture) arrow(r *Row) {
	a, b, y := p.x(r.From), p.x(r.To), p.y-4
	class, way := "request", Letter(r.From)+" to "+Letter(r.To)
	if r.isAnswer() {
		class = "answer"
	}
	for _, m := range r.Marks {
		switch m.Kind {
		case MarkRepeat, MarkRefusal, MarkWait:
			class = map[MarkKind]string{MarkRepeat: "repeat", MarkRefusal: "refusal", MarkWait: "wait"}[m.Kind]
		}
	}
	sign := 1
	if b < a {
		sign = -1
	}
	var d string
	switch down := 0; {
	case r.From == r.To:
		d = fmt.Sprintf("M%d %dh24v9h-24m6 -4l-6 4l6 4", a, y-4)
	case r.Fate == Lost || r.Fate == Damaged:
		class, way = "lost", way+", does not arrive"
		x := (a + b) / 2
		d = fmt.Sprintf("M%d %dL%d %dM%d %dl10 10m-10 0l10 -10", a, y, x, y+3, x-5, y-2)
	default:
		if r.Took >= 0 {
			down = slope
		}
		d = fmt.Sprintf("M%d %dL%d %dm%d %dl%d 4l%d 4", a, y, b, y+down, -7*sign, -4, 7*sign, -7*sign)
	}
	fmt.Fprintf(p, "<path class=\"%s\" d=\"%s\" role=\"img\" aria-label=\"%s\"/>\n", class, d, escape(way))
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
