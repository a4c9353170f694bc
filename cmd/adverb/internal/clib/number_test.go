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
