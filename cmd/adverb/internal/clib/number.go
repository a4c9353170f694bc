// Package clib has the parts of the C library and of libibverbs that classic programs use: reading and printing
// numbers, and the texts of errors.
package clib

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Strtol reads a number as the C library's strtol does with base 0, which most of the classic programs use. The
// prefixes 0x and 0 count, text behind the number is ignored, and a text that is no number is 0.
func Strtol(s string) int64 {
	v, _ := strtol(s, 0)
	return v
}

// strtol reads a number of a base, where 0 is Strtol's. whole says that the text is a number and no more.
func strtol(s string, base int64) (v int64, whole bool) {
	s, negative := cutSign(s)
	switch {
	case base != 0:
	case len(s) > 2 && s[0] == '0' && s[1]|0x20 == 'x' && digit(s[2]) < 16:
		base, s = 16, s[2:]
	case strings.HasPrefix(s, "0"):
		base = 8
	default:
		base = 10
	}
	n := 0
	for ; n < len(s) && digit(s[n]) < base; n++ {
		if d := digit(s[n]); v > (math.MaxInt64-d)/base {
			v = math.MaxInt64
		} else {
			v = v*base + d
		}
	}
	if negative {
		v = -v
	}
	return v, n > 0 && n == len(s)
}

// Int is Strtol for a flag whose variable is an int in the C program. It clamps where the C program
// would wrap around.
func Int(s string) int { return int(max(math.MinInt32, min(math.MaxInt32, Strtol(s)))) }

// Atoi is the C library's atoi: decimal digits, and 0 for a text that is no number. It clamps where
// atoi would wrap around.
func Atoi(s string) int {
	s, negative := cutSign(s)
	v := 0
	for i := 0; i < len(s) && digit(s[i]) < 10; i++ {
		v = min(v*10+int(digit(s[i])), math.MaxInt32)
	}
	if negative {
		return -v
	}
	return v
}

// Within returns a check of a flag whose text the program reads by Strtol. The C programs take a text without a
// number for 0, and use a number out of range as it is: they fail later, by something else, or measure a thing that
// nobody asked for.
func Within(lowest, highest int64) func(string) error {
	return func(s string) error { return within(s, 0, lowest, highest) }
}

// DecimalWithin is Within for a program that reads by Atoi.
func DecimalWithin(lowest, highest int64) func(string) error {
	return func(s string) error { return within(s, 10, lowest, highest) }
}

func within(s string, base, lowest, highest int64) error {
	n, whole := strtol(s, base)
	why := ""
	switch {
	case !whole:
		why = "that is no number"
	case n < lowest:
		why = "that is too small"
	case n > highest:
		why = "that is too large"
	default:
		return nil
	}
	return fmt.Errorf("%s: give one from %d to %d", why, lowest, highest)
}

// cutSign removes the spaces and the sign in front of a number.
func cutSign(s string) (rest string, negative bool) {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	if s != "" && (s[0] == '-' || s[0] == '+') {
		return s[1:], s[0] == '-'
	}
	return s, false
}

func digit(c byte) int64 {
	switch {
	case c >= '0' && c <= '9':
		return int64(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'z':
		return int64(c|0x20-'a') + 10
	}
	return math.MaxInt64
}

// HasPrefix is strncasecmp(prefix, s, len(prefix)) == 0, by which the programs tell the values of
// some flags apart.
func HasPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// String is the text in a buffer, up to its NUL.
func String(buf []byte) []byte {
	if i := bytes.IndexByte(buf, 0); i >= 0 {
		return buf[:i]
	}
	return buf
}

// Printable is the text in a peer's buffer, up to its NUL, for a terminal: characters that are not printable are
// written as \xNN. So a peer cannot write escape sequences to the user's terminal.
func Printable(buf []byte) []byte {
	buf = String(buf)
	out := make([]byte, 0, len(buf))
	for len(buf) > 0 {
		r, n := utf8.DecodeRune(buf)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			for _, b := range buf[:n] {
				out = fmt.Appendf(out, `\x%02x`, b)
			}
		} else {
			out = append(out, buf[:n]...)
		}
		buf = buf[n:]
	}
	return out
}

// Float is C's %.2f. It matters where a program divides by zero.
func Float(f float64) string {
	switch {
	case math.IsNaN(f):
		return "-nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return fmt.Sprintf("%.2f", f)
}
