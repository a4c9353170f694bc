package clib

import "math"

import "testing"

func TestStrtol(t *testing.T) {
	for _, tt := range []struct {
		s    string
		want int64
	}{
		{"", 0}, {"x", 0}, {"18515", 18515}, {" 7", 7}, {"-7", -7}, {"+7", 7}, {"7seven", 7},
		{"0x1F", 31}, {"0x", 0}, {"0xg", 0}, {"017", 15}, {"08", 0}, {"-0x10", -16},
		{"9223372036854775807", math.MaxInt64}, {"99999999999999999999", math.MaxInt64},
	} {
		if got := Strtol(tt.s); got != tt.want {
			t.Errorf("Strtol(%q) = %d, want %d", tt.s, got, tt.want)
		}
	}
}

func TestAtoi(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "x": 0, "7": 7, " \t+12ab": 12, "-3": -3, "010": 10, "0x10": 0, "99999999999999999999": math.MaxInt32,
	} {
		if got := Atoi(s); got != want {
			t.Errorf("Atoi(%q) = %d, want %d", s, got, want)
		}
	}
}

func TestHasPrefix(t *testing.T) {
	for _, tt := range []struct {
		s, prefix string
		want      bool
	}{{"ip", "ip", true}, {"IPv6", "ip", true}, {"i", "ip", false}, {"gids", "gid", true}, {"", "ip", false}} {
		if got := HasPrefix(tt.s, tt.prefix); got != tt.want {
			t.Errorf("HasPrefix(%q, %q) = %v, want %v", tt.s, tt.prefix, got, tt.want)
		}
	}
}

func TestString(t *testing.T) {
	for in, want := range map[string]string{"": "", "ab": "ab", "ab\x00c\x00": "ab", "\x00": ""} {
		if got := string(String([]byte(in))); got != want {
			t.Errorf("String(%q) = %q, want %q", in, got, want)
		}
	}
}

// A check takes a text that the reading takes for a number of the range, and nothing else.
func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		check func(string) error
		s     string
		want  string // of the error
	}{
		{Within(-1, 31), "-1", ""}, {Within(-1, 31), "31", ""}, {Within(-1, 31), "0x1f", ""}, {Within(-1, 31), "037", ""}, {Within(-1, 31), " +7", ""},
		{Within(-1, 31), "-2", "that is too small: give one from -1 to 31"},
		{Within(-1, 31), "0x20", "that is too large: give one from -1 to 31"},
		{Within(-1, 31), "99999999999999999999", "that is too large: give one from -1 to 31"},
		{Within(0, 1), "", "that is no number: give one from 0 to 1"}, {Within(0, 1), "x", "that is no number: give one from 0 to 1"},
		{Within(0, 1), "-", "that is no number: give one from 0 to 1"}, {Within(0, 9), "7seven", "that is no number: give one from 0 to 9"},
		{Within(0, 9), "08", "that is no number: give one from 0 to 9"}, {Within(0, 9), "0x", "that is no number: give one from 0 to 9"},
		{DecimalWithin(0, 9), "08", ""}, {DecimalWithin(0, 9), "010", "that is too large: give one from 0 to 9"},
		{DecimalWithin(0, 9), "0x8", "that is no number: give one from 0 to 9"},
	} {
		got := ""
		if err := tt.check(tt.s); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.s, got, tt.want)
		}
	}
}
