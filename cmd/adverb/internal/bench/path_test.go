package bench

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench/emulator"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/benchdata"
)

// pathBench measures rows of a table over a path, or skips the test where that cannot be.
func pathBench(t *testing.T, table string) *pathReport {
	t.Helper()
	code, stdout, stderr := tool.Run(t.Context(), "adverb", "bench", "--json", "-r", "1", "-t", "50ms", "--path", table)
	if code != 0 && (strings.Contains(stderr, "root") || strings.Contains(stderr, "Linux") || strings.Contains(stderr, "tun")) {
		t.Skip(stderr)
	}
	if code != 0 {
		t.Fatalf("got status %d, stderr %s, want status 0", code, stderr)
	}
	var r pathReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	return &r
}

// TestPath: as root there are paths between two namespaces. Each flow alone, and two at a time.
func TestPath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("network namespaces are Linux's")
	}
	for _, table := range []string{"losses:1ms, 0.1 %", "shares:1 × round trip: delay beside CUBIC"} {
		r := pathBench(t, table)
		row := &r.Rows[0]
		uses := len(row.Flows)
		if row.Together {
			uses = 1
		}
		if len(r.Rows) != 1 || len(row.Paths) != uses {
			t.Fatalf("%s: got %+v, want one row, and %d paths used", table, r, uses)
		}
		for i, cells := range row.Cells {
			bbr := row.Flows[i] == "BBR" && len(cells) == 1 && strings.Contains(cells[0].Failed, "modprobe tcp_bbr")
			if len(cells) != 1 || cells[0].Failed != "" && !bbr || cells[0].Value > float64(row.Config.Rate)*1.2 {
				t.Errorf("%s, %s: got %+v, want a measurement", table, row.Flows[i], cells)
			}
		}
		for _, p := range row.Paths {
			if p.There.Passed == 0 || p.Back.Passed == 0 || p.Late.P99 == 0 {
				t.Errorf("%s: got %+v, want packets in both directions", table, p)
			}
		}
	}
}

// TestPathFlags: which tables there are.
func TestPathFlags(t *testing.T) {
	for arg, want := range map[string]string{"wan": "the tables are losses and shares", "losses:nope": "no row has this text"} {
		code, _, stderr := tool.Run(t.Context(), "adverb", "bench", "--path", arg)
		if code == cli.ExitOK || !strings.Contains(stderr, want) {
			t.Errorf("--path %s: got status %d, stderr %q, want %q", arg, code, stderr, want)
		}
	}
}

// TestPathTable: the tables of flows that are alone, and of two at a time.
func TestPathTable(t *testing.T) {
	cells := func(values ...float64) (list []benchdata.Cell) {
		for _, v := range values {
			list = append(list, benchdata.Cell{Value: v, Ops: 1, Seconds: 1})
		}
		return list
	}
	use := []pathUse{{There: emulator.Stats{Longest: 10 << 10}, Late: emulator.Lateness{P99: 20_000, Max: 300_000}}}
	r := pathReport{Host: benchdata.Host{Kernel: "6.1", CPUs: 2, Go: "go1.26"}, Rounds: 3, Seconds: 5, Rows: []pathRow{
		{Name: "nothing lost", Flows: []string{"window", "BBR"}, Cells: [][]benchdata.Cell{cells(100e6, 120e6, 80e6), {{Failed: "no BBR"}}}, Paths: use},
		{Name: "1 % lost", Flows: []string{"window", "BBR"}, Cells: [][]benchdata.Cell{cells(50e6), cells(10e6)}, Config: emulator.Config{Loss: .01}},
	}}
	check := func(want string) {
		t.Helper()
		var b bytes.Buffer
		printPath(&b, &r)
		if b.String() != want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), want)
		}
	}
	const last = "\n0001-01-01, Linux 6.1, 2 CPUs, go1.26; adverb of unknown revision. Medians of 3 rounds of 5 s. " +
		"The emulator was late by 20µs at most with 99 % of the packets, and by 300µs with the last.\n"
	check("|  | window | BBR |\n|---|---|---|\n| nothing lost | 100.0 (1.00) | failed: no BBR |\n| 1 % lost | 50.0 (0.50) | 10.0 |\n" + last)
	r.Rows = []pathRow{{Name: "both", Together: true, Flows: []string{"window", "BBR"}, Cells: [][]benchdata.Cell{cells(30e6, 20e6), cells(10e6, 20e6)}, Paths: use}}
	check("|  | first | second | first ÷ second | queue |\n|---|---|---|---|---|\n| both | 25.0 | 15.0 | 2.00 (1.00–3.00) | 10 |\n" + last)
}
