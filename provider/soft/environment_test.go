package soft_test

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestBadEnvironment: no device of either kind opens while a variable has a value that means nothing. The error
// names the variable, its value, and the values that it may have.
func TestBadEnvironment(t *testing.T) {
	roce := loopback(t)
	for _, tt := range []struct{ name, value, remedy string }{
		{"ADVERB_SHM", "no", "say 1 or 0"},
		{"ADVERB_WATCH", "off", "say 1 or 0"},
		{"ADVERB_EXTENSIONS", "00", "say 1 or 0"},
		{"ADVERB_TRACE", "yes", "say 1 or 0"},
		{"ADVERB_IWARP", "2", "say 1 or 0"},
		{"ADVERB_ROCEV1", "2", "say 1 for GIDs of RoCEv1"},
		{"ADVERB_IWARP_CRC", "on", "say 1 or 0"},
		{"ADVERB_IWARP_CRC", "-1", "say 1 or 0"},
		{"ADVERB_DEBUG", "mrs", `there is "mr"`},
		{"ADVERB_DEBUG", "mr,qp", `there is "mr"`},
		{"ADVERB_SPIN", "200", "say 1 or 0"},
		{"ADVERB_SHARDS", "many", "say 1 to 16"},
		{"ADVERB_CONGESTION", "cubic", "dcqcn"},
		{"ADVERB_ROUTING", "spray", "send"},
	} {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			t.Setenv(tt.name, tt.value)
			for _, name := range []string{roce, "iw_" + strings.TrimPrefix(roce, "soft_")} {
				dev, err := verbs.Open(name)
				if err == nil {
					dev.Close()
					t.Errorf("%s opens", name)
					continue
				}
				for _, want := range []string{name, tt.name, tt.value, tt.remedy} {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("open %s: %v; want an error with %q", name, err, want)
					}
				}
			}
		})
	}
}

// TestListedByEnvironment: ADVERB_IWARP lists the devices that speak iWARP or does not, and says so if it is neither.
func TestListedByEnvironment(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "false": false, "1": true, "true": true} {
		t.Setenv("ADVERB_IWARP", value)
		infos, err := verbs.Devices()
		if got := len(infos) > 0 && strings.HasPrefix(infos[0].Name, "iw_"); err != nil || got != want {
			t.Errorf("ADVERB_IWARP=%q: %v listed first, %v; want iWARP's: %v", value, infos, err, want)
		}
	}
	t.Setenv("ADVERB_IWARP", "all")
	if _, err := verbs.Devices(); err == nil || !strings.Contains(err.Error(), "ADVERB_IWARP") {
		t.Errorf("ADVERB_IWARP=all: got %v, want an error that names it", err)
	}
}
