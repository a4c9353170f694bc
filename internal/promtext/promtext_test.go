package promtext

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
)

func written(t *testing.T, all []watch.Process, silent int) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, all, silent); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWrite(t *testing.T) {
	got := written(t, []watch.Process{{PID: 7, Command: `a"b\c`, Devices: []watch.Device{{
		Name:     "soft_lo",
		Counters: map[string]uint64{"sent_pkts": 5, "not_known": 9, "rdma_writes\"} 1\nx": 3},
		Port:     map[string]uint64{"port_xmit_packets": 6},
		Count:    map[string]int{"qp": 1, "not_known": 2},
		QP:       []watch.QP{{QPN: 0x11, Type: "QPT_RC", Counters: map[string]uint64{"window_pkts": 64}}},
	}}}}, 2)
	want := `# HELP adverb_sent_pkts_total packets that QPs sent
# TYPE adverb_sent_pkts_total counter
adverb_sent_pkts_total{pid="7",command="a\"b\\c",device="soft_lo"} 5
# HELP adverb_port_xmit_packets_total packets sent
# TYPE adverb_port_xmit_packets_total counter
adverb_port_xmit_packets_total{pid="7",command="a\"b\\c",device="soft_lo",port="1"} 6
# HELP adverb_open_objects objects that are open, by kind
# TYPE adverb_open_objects gauge
adverb_open_objects{pid="7",command="a\"b\\c",device="soft_lo",kind="qp"} 1
# HELP adverb_qp_window_pkts RC: packets that may be unacknowledged
# TYPE adverb_qp_window_pkts gauge
adverb_qp_window_pkts{pid="7",command="a\"b\\c",device="soft_lo",qp="0x000011",type="QPT_RC"} 64
# HELP adverb_programs programs with open devices that were asked, by how it went
# TYPE adverb_programs gauge
adverb_programs{state="answered"} 1
adverb_programs{state="silent"} 2
adverb_programs{state="cut"} 0
`
	if got != want {
		t.Errorf("written:\n%s\nwant:\n%s", got, want)
	}
}

// Two processes of other PID namespaces have the same ID. Two samples of the same labels would make the server refuse
// all of them.
func TestSameLabels(t *testing.T) {
	p := watch.Process{Command: "x", Devices: []watch.Device{{Name: "d", Counters: map[string]uint64{"sent_pkts": 5}}}}
	got := written(t, []watch.Process{p, p}, 0)
	if want := "\n" + `adverb_sent_pkts_total{pid="0",command="x",device="d"} 10` + "\n"; !strings.Contains(got, want) {
		t.Errorf("written:\n%s\nwant%s", got, want)
	}
	for line, n := range count(got) {
		if n > 1 {
			t.Errorf("%d lines of %s, want 1", n, line)
		}
	}
}

// count returns how often there is each sample, and each description.
func count(text string) map[string]int {
	n := map[string]int{}
	for line := range strings.Lines(text) {
		n[line[:strings.LastIndexByte(strings.TrimSpace(line), ' ')]]++
	}
	return n
}

// Of a program that tells of very many QPs a part is left out, and others are not.
func TestBound(t *testing.T) {
	many := watch.Process{PID: 1, Command: "many", Devices: []watch.Device{{Name: "d"}}}
	for i := range uint32(MaxSamples + 1) {
		many.Devices[0].QP = append(many.Devices[0].QP, watch.QP{QPN: i, Counters: map[string]uint64{"window_pkts": 1}})
	}
	few := watch.Process{PID: 2, Command: "few", Devices: []watch.Device{{Name: "d", Counters: map[string]uint64{"sent_pkts": 5}}}}
	got := written(t, []watch.Process{many, few}, 0)
	if n := strings.Count(got, `pid="1"`); n != MaxSamples {
		t.Errorf("%d samples of a program that has more, want %d", n, MaxSamples)
	}
	for _, want := range []string{`pid="2",command="few",device="d"} 5`, `adverb_programs{state="cut"} 1`} {
		if !strings.Contains(got, want) {
			t.Errorf("want %s in what is written", want)
		}
	}
}

// No two counters make one name.
func TestNames(t *testing.T) {
	all := map[string]uint64{}
	for _, c := range known {
		all[c.Name] = 1
	}
	p := watch.Process{Devices: []watch.Device{{Name: "d", Counters: all, QP: []watch.QP{{Counters: all}}}}}
	got := count(written(t, []watch.Process{p}, 0))
	for _, line := range slices.Sorted(maps.Keys(got)) {
		if got[line] > 1 {
			t.Errorf("%d times %s, want 1", got[line], line)
		}
	}
}
