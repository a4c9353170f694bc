package cli

import "testing"

// Text appears as it is written, whatever roff makes of its characters.
func TestRoff(t *testing.T) {
	for in, want := range map[string]string{
		"plain":            "plain",
		".so x":            `\&.so x`,
		"'x'":              `\(aqx\(aq`,
		`a\b`:              `a\eb`,
		"--mtu=<size>":     `\-\-mtu=<size>`,
		"4.096 us * 2^<n>": `4.096 us * 2\(ha<n>`,
	} {
		if got := roff(in); got != want {
			t.Errorf("roff(%q) = %q, want %q", in, got, want)
		}
	}
}

// Indented lines stay as they are, and the paragraphs around them do not.
func TestPageText(t *testing.T) {
	p := new(page)
	p.text("One\ntwo.\n\nThree:\n  a  b\n\n  c\nFour.\n")
	const want = "One\ntwo.\n.PP\nThree:\n.PP\n.RS 4\n.nf\na  b\n.sp\nc\n.fi\n.RE\n.PP\nFour.\n"
	if got := p.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Text of Markdown appears as it is written too.
func TestEscapeMarkdown(t *testing.T) {
	for in, want := range map[string]string{
		"plain, (1) - x":   "plain, (1) - x",
		"<n> of a|b_c*":    `\<n\> of a\|b\_c\*`,
		"- no list\n1. no": `\- no list` + "\n" + `1\. no`,
		"`c` & [d](e)":     "\\`c\\` \\& \\[d\\](e)",
		"2 - x\n= y":       "2 - x\n\\= y",
	} {
		if got := escapeMarkdown(in); got != want {
			t.Errorf("escapeMarkdown(%q) = %q, want %q", in, got, want)
		}
	}
}
