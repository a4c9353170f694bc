package cm

import "net/netip"

import "errors"

import "testing"

func TestAddresses(t *testing.T) {
	for _, tt := range []struct {
		flags    Flags
		src, dst string // "" for the zero value
		code     int    // of getaddrinfo
	}{
		{Flags{Port: "7471"}, "0.0.0.0:7471", "", 0},
		{Flags{Port: "1", Bind: "::0"}, "[::]:1", "", 0},
		{Flags{Port: "1", Bind: "127.0.0.1"}, "127.0.0.1:1", "", 0},
		{Flags{Port: "1", Server: "127.0.0.1"}, "", "127.0.0.1:1", 0},
		{Flags{Port: "1", Server: "::1", Bind: "::1"}, "[::1]:0", "[::1]:1", 0},
		{Flags{Port: "1", Server: "localhost"}, "", "127.0.0.1:1", 0},
		{Flags{Port: "1", Server: "127.0.0.1", Numeric: true}, "", "127.0.0.1:1", 0},
		{Flags{Port: "1", Server: "localhost", Numeric: true}, "", "", EAINoName},
		{Flags{Port: "1", Server: "127.0.0.1", Bind: "x", Numeric: true}, "", "", EAINoName},
		{Flags{Port: "no-such-service", Server: "127.0.0.1"}, "", "", EAIService},
	} {
		src, dst, err := tt.flags.Addresses(t.Context())
		text := func(a netip.AddrPort) string {
			if !a.IsValid() {
				return ""
			}
			return a.String()
		}
		e, _ := errors.AsType[*LookupError](err)
		switch {
		case tt.code != 0 && (e == nil || e.Code != tt.code):
			t.Errorf("%+v: got %v, want getaddrinfo's error %d", tt.flags, err, tt.code)
		case tt.code == 0 && (err != nil || text(src) != tt.src || text(dst) != tt.dst):
			t.Errorf("%+v: got %v %v %v, want %s %s", tt.flags, src, dst, err, tt.src, tt.dst)
		}
	}
}
