package bench

import (
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/benchdata"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The output of the programs, by version 1.13 of UCX and 1.17 of libfabric.
func TestParseOutput(t *testing.T) {
	for _, tt := range []struct {
		file  string
		parse func(string) (float64, error)
		want  float64 // a second
	}{
		{"ucx_bw.txt", parseUCX, 1e6 / 7062.260}, // from the time: the rate is a whole number
		{"ucx_rate.txt", parseUCX, 329773},
		{"fi_pingpong.txt", parseLibfabric, 1e6 / 573.50},
		{"fi_rma_bw.txt", parseLibfabric, 1e6 / 200},
	} {
		output := testdata(t, tt.file)
		if got, err := tt.parse(output); err != nil || math.Abs(got-tt.want) > tt.want/1e9 {
			t.Errorf("%s: got %v, %v, want %v", tt.file, got, err, tt.want)
		}
		header, _, _ := strings.Cut(output, "\n")
		for _, bad := range []string{"", "Killed\n", header + "\n", header + "\n" + strings.Repeat("x,", 7) + "x\n", strings.Repeat("x ", 8)} {
			if got, err := tt.parse(bad); err == nil {
				t.Errorf("%s, output %q: got %v, want an error", tt.file, bad, got)
			}
		}
	}
}

func TestListens(t *testing.T) {
	table := testdata(t, "proc_net_tcp.txt")
	for port, want := range map[int]bool{
		0x34ac: true,
		0x34ad: false, // a connection
		0x4ac:  false, // the end of the name of another
		0:      false,
	} {
		if got := listens(table, port); got != want {
			t.Errorf("port %#x: got %v, want %v", port, got, want)
		}
	}
}

// A missing program is named in the row, with the package that installs it.
func TestMissingPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r, _ := bench(t, "-r", "1", "-t", "1ms", "--networks", "loopback", "--peers", "ucx,ofi_tcp", "--workloads", "lat_polled")
	series := r.Networks[0].Rows[0].Series
	for i, want := range []string{"apt install ucx-utils", "apt install libfabric-bin"} {
		if s := series[i]; !strings.Contains(s.Missing, want) || len(s.Cells) != 0 {
			t.Errorf("%s: got %+v, want no cell, and missing with %q", s.Peer, s, want)
		}
	}
}

// mimic makes the test binary be ucx_perftest: a server that listens, and a client that connects, and
// says that each operation took it 10 µs.
func mimic(args []string) int {
	value := func(flag string) string {
		for i, a := range args {
			if a == flag {
				return args[i+1]
			}
		}
		return ""
	}
	if value("-t") == "" {
		l, err := net.Listen("tcp", loopbackAddrs[atServer]+":"+value("-p"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		l.Accept()
		return 0
	}
	if value("-s") == "65536" {
		fmt.Fprintln(os.Stderr, "some noise\nUCX ERROR no such size")
		return 3
	}
	if _, err := net.Dial("tcp", loopbackAddrs[atServer]+":"+value("-p")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	n, _ := strconv.Atoi(value("-n"))
	fmt.Printf("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n%d,10,10,10.000,1,1,100000,100000\n", n)
	return 0
}

// Another project's program is started as server and client, in numbers of operations that fill the
// time of a cell.
func TestOutside(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the server's port is looked for in Linux's tables")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(dir, "ucx_perftest")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	r, table := bench(t, "-r", "2", "-t", "20ms", "--networks", "loopback", "--peers", "ucx", "--workloads", "write_64,write_64k,lat_polled")
	rows := r.Networks[0].Rows
	for i, want := range []struct {
		value float64
		ops   int64
	}{{100_000, 2000}, {}, {10e-6, 1000}} {
		for round, c := range rows[i].Series[0].Cells {
			if want.ops == 0 {
				if !strings.HasPrefix(c.Failed, "ucx_perftest: exit status 3: UCX ERROR no such size") {
					t.Errorf("%s, round %d: got %+v, want the program's failure", rows[i].Workload.Name, round, c)
				}
				continue
			}
			if math.Abs(c.Value-want.value) > want.value/1e3 || c.Ops != want.ops || c.Failed != "" || c.Counts != nil {
				t.Errorf("%s, round %d: got %+v, want %v by %d operations", rows[i].Workload.Name, round, c, want.value, want.ops)
			}
		}
	}
	if !strings.Contains(table, "failed in 2 of 2 rounds: ucx_perftest: exit status 3") {
		t.Errorf("got the table\n%s\nwant the failure in it", table)
	}
}

// A workload's value is in its unit.
func TestValue(t *testing.T) {
	w := workloads[0]
	if got := w.value(100, 1e9); got != 100 || w.unit() != benchdata.PerSecond {
		t.Errorf("64-byte WRITEs: got %v %s, want 100 a second", got, w.unit())
	}
	lat := workload{kind: kindPolled, size: 64}
	if got := lat.value(100, 1e9); got != 5e-3 || lat.unit() != benchdata.Seconds {
		t.Errorf("100 round trips in a second: got %v %s, want 5 ms one way", got, lat.unit())
	}
	bulk := workload{kind: kindWrite, size: 1 << 20}
	if got := bulk.value(100, 1e9); got != 100<<20 || bulk.unit() != benchdata.BytesPerSecond {
		t.Errorf("100 MiB in a second: got %v %s, want that", got, bulk.unit())
	}
}
