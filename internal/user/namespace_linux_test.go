package user

import (
	"strings"
	"testing"
)

func TestMapsAll(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n":             true, // the system's own
		"0 0 1000\n1000 1000 4294966295\n":               true,
		"0 100000 2147483648\n2147483648 0 2147483647\n": true,
		"0 0 4294967294\n":                               false,
		"         0       1000          1\n":             false,
		"0 100000 65536\n":                               false,
		"65534 65534 1\n":                                false,
		"":                                               false,
		"0 0 4294967295\n0 0 x\n":                        false,
		"0 0 18446744073709551615\n0 0 1\n":              false,
		"0 0\n":                                          false,
		strings.Repeat("0 0 1\n", 100) + "1 1 4294967195\n":   true,
		"0 0 4294967295 " + strings.Repeat("x", 1<<17) + "\n": false,
	} {
		if got := mapsAll(strings.NewReader(text)); got != want {
			t.Errorf("%.60q maps all users: got %v, want %v", text, got, want)
		}
	}
}
