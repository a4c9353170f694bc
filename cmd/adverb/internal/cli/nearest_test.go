package cli

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"devices", "devinfo", "gids", "rc_pingpong", "ud_pingpong", "rping", "ibv_devinfo", "ibv_rc_pingpong", "completion"}
	for typed, want := range map[string]string{
		"devinf":         "devinfo",
		"devcies":        "devices",
		"rc_pingpng":     "rc_pingpong",
		"ibv_rcpingpong": "ibv_rc_pingpong",
		"pingpong":       "rc_pingpong", // the first that ends so
		"comp":           "completion",
		"gid":            "gids",
		"frobnicate":     "",
		"x":              "",
		"":               "",
	} {
		if got := Nearest(typed, names); got != want {
			t.Errorf("%q: got %q, want %q", typed, got, want)
		}
	}
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abd", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"abcd", "bd", 2}} {
		if got := edits(tt.a, tt.b); got != tt.want {
			t.Errorf("from %q to %q: got %d edits, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
