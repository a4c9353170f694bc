package clib

import "testing"

// A peer's text reaches the terminal as it is if it is printable, and harmless otherwise.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abc{|}~ ": "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abc{|}~ ",
		"Grüße, 世界\x00behind the NUL":                            "Grüße, 世界",
		"\x1b]0;title\a\x1b[2J":                                  `\x1b]0;title\x07\x1b[2J`,
		"a\r\nb\tc\x7f":                                          `a\x0d\x0ab\x09c\x7f`,
		"C1 \u009b31m, bidi \u202e":                              `C1 \xc2\x9b31m, bidi \xe2\x80\xae`,
		"cut \xe4\xb8":                                           `cut \xe4\xb8`,
		"":                                                       "",
	} {
		if got := string(Printable([]byte(in))); got != want {
			t.Errorf("Printable(%q): got %q, want %q", in, got, want)
		}
	}
}
