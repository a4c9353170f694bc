package perftest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// The devices of these tests, on addresses that no other test has.
const (
	serverAddr   = "127.0.88.71"
	serverDevice = "soft_lo@127.0.88.71"
	clientDevice = "soft_lo@127.0.88.72"

	// patientTimeout is an acknowledge timeout of 1 s. With the default a QP gives up after half a
	// second, for which a busy machine may well leave a thread alone.
	patientTimeout = "18"
)

// runPair runs a server and a client of the program of that classic name.
func runPair(t *testing.T, prog, serverFlags, clientFlags string) (server, client tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port, host := tooltest.FreePort(t), "127.0.0.1"
	if strings.Contains(serverFlags, "-R") || strings.Contains(serverFlags, "-z") {
		port, host = tooltest.FreeCMPort(), serverAddr
	}
	args := func(dev, flags string) []string {
		return append([]string{prog, "-p", port, "-d", dev, "-u", patientTimeout}, strings.Fields(flags)...)
	}
	s := tool.StartUntil(ctx, "* Waiting for client to connect... *", args(serverDevice, serverFlags)...)
	client = tool.Result(ctx, append(args(clientDevice, clientFlags), host)...)
	return <-s, client
}

// ends are the lines about the ends of the QPs, those of side.
func ends(stdout, side string) (list []string) {
	for line := range strings.Lines(stdout) {
		if rest, ok := strings.CutPrefix(line, " "+side+" address: "); ok {
			list = append(list, rest)
		}
	}
	return list
}

const figure = ` +\d+\.\d+`

// rows is the form of a run's table: these sizes, and so many messages.
func rows(latency bool, iters string, sizes ...string) *regexp.Regexp {
	columns := strings.Repeat(`\s+\d+\.\d+`, 3)
	if latency {
		columns = strings.Repeat(`\s+\d+\.\d+`, 7)
	}
	var b strings.Builder
	for _, s := range sizes {
		b.WriteString(`\n ` + s + ` +` + iters + columns + ` *`)
	}
	return regexp.MustCompile(b.String() + ` *\n-+\n$`)
}

// programRun is a run of both ends, and their expected output.
type programRun struct {
	prog, flags string
	qps         int
	iters       string // messages of all QPs
	sizes       []string
}

// stderr is a run's output beside its table.
func (r *programRun) stderr() string {
	if strings.Contains(r.flags, "UD -a") {
		return " Max msg size in UD is MTU 256\n Changing to this MTU\n"
	}
	return ""
}

func TestPrograms(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo") // UC and UD lose packets that a busy machine does not fetch
	for _, tt := range []programRun{
		{"send_bw", "-n 50", 1, "50", []string{"65536"}},
		{"send_bw", "-n 50 -R", 1, "50", []string{"65536"}},
		{"send_bw", "-n 50 -z -s 10", 1, "50", []string{"10"}},
		{"send_bw", "-n 20 -b -s 4097 -m 1024", 1, "20", []string{"4097"}},
		{"send_bw", "-n 20 -b --report-both -e", 1, "20", []string{"65536"}},
		{"send_bw", "-n 20 -c UC -s 1K", 1, "20", []string{"1024"}},
		{"send_bw", "-n 20 -c UD", 1, "20", []string{"4096"}},
		{"send_bw", "-n 20 -c UD -R -s 64", 1, "20", []string{"64"}},
		{"send_bw", "-n 20 -c UD -R -b -q 2 -s 64", 2, "40", []string{"64"}},
		{"send_bw", "-n 20 -q 3 --use-srq -r 12", 3, "60", []string{"65536"}},
		{"send_bw", "-n 20 -l 5 --recv_post_list 4 -t 10 -r 8", 1, "20", []string{"65536"}},
		{"send_bw", "-n 20 -Q 7 -s 100 --mr_per_qp -q 2 -N", 2, "40", []string{"100"}},
		{"send_bw", "-n 5 -c UD -a -m 256", 1, "5", []string{"2", "4", "8", "16", "32", "64", "128", "256"}},
		{"send_bw", "-n 20 --reversed", 1, "20", []string{"65536"}},
		{"send_bw", "-n 20 --dont_xchg_versions --odp -X 0 -I 20 -s 20", 1, "20", []string{"20"}},
		{"send_bw", "-n 20 -c UD --send_with_imm -s 64 --cqe_poll=3", 1, "20", []string{"64"}},
		{"send_lat", "-n 50 --send_with_imm --cqe_poll=1", 1, "50", []string{"2"}},
		{"send_lat", "-n 50", 1, "50", []string{"2"}},
		{"send_lat", "-n 50 -R -e", 1, "50", []string{"2"}},
		{"send_lat", "-n 50 -c UC -s 5000", 1, "50", []string{"5000"}},
		{"send_lat", "-n 50 -c UD", 1, "50", []string{"2"}},
		{"send_lat", "-n 50 -c UD -R -s 1024", 1, "50", []string{"1024"}},
		{"send_lat", "-n 20 --use-srq -r 4 -t 3", 1, "20", []string{"2"}},
		{"write_bw", "-n 50", 1, "50", []string{"65536"}},
		{"write_bw", "-n 50 -R -q 2", 2, "100", []string{"65536"}},
		{"write_bw", "-n 20 -b -q 2 -l 4", 2, "40", []string{"65536"}},
		{"write_bw", "-n 20 -c UC -s 100 --perform_warm_up", 1, "20", []string{"100"}},
		{"write_bw", "-n 20 --rate_limit=100 --rate_units=M --burst_size=4 -s 4096", 1, "20", []string{"4096"}},
		{"write_lat", "-n 50", 1, "50", []string{"2"}},
		{"write_lat", "-n 300 -R -s 9", 1, "300", []string{"9"}},
		{"write_lat", "-n 50 -c UC -s 4097 -I 0", 1, "50", []string{"4097"}},
		{"read_bw", "-n 50 -e", 1, "50", []string{"65536"}},
		{"read_bw", "-n 20 -R -b -o 2", 1, "20", []string{"65536"}},
		{"read_lat", "-n 50", 1, "50", []string{"2"}},
		{"read_lat", "-n 20 -R -e", 1, "20", []string{"2"}},
		{"atomic_bw", "-n 50", 1, "50", []string{"8"}},
		{"atomic_bw", "-n 20 -b -A CMP_AND_SWAP -q 2", 2, "40", []string{"8"}},
		{"atomic_lat", "-n 50 -R", 1, "50", []string{"8"}},
		{"send_bw", "-n 50 -c XRC", 1, "50", []string{"65536"}},
		{"send_bw", "-n 20 -c XRC -q 3 -r 12", 3, "60", []string{"65536"}},
		{"send_bw", "-n 20 -c XRC -b -q 2 -r 10 -s 100 -e", 4, "40", []string{"100"}},
		{"send_bw", "-n 20 -c XRC --reversed -z", 1, "20", []string{"65536"}},
		{"send_lat", "-n 50 -c XRC", 2, "50", []string{"2"}},
		{"write_bw", "-n 20 -c XRC -q 2 --mr_per_qp --perform_warm_up", 2, "40", []string{"65536"}},
		{"write_bw", "-n 20 -c XRC -b -l 5", 2, "20", []string{"65536"}},
		{"write_lat", "-n 50 -c XRC -s 4097", 2, "50", []string{"4097"}},
		{"read_bw", "-n 20 -c XRC", 1, "20", []string{"65536"}},
		{"read_bw", "-n 20 -c XRC -b -q 2", 4, "40", []string{"65536"}},
		{"read_lat", "-n 20 -c XRC -e", 2, "20", []string{"2"}},
		{"atomic_bw", "-n 20 -c XRC -b", 2, "20", []string{"8"}},
		{"atomic_lat", "-n 20 -c XRC -A CMP_AND_SWAP", 2, "20", []string{"8"}},
	} {
		t.Run(tt.prog+strings.ReplaceAll(tt.flags, " ", ""), func(t *testing.T) {
			server, client := runPair(t, "ib_"+tt.prog, tt.flags, tt.flags)
			latency := strings.HasSuffix(tt.prog, "_lat")
			passive := latency && !strings.HasPrefix(tt.prog, "send") && !strings.HasPrefix(tt.prog, "write")
			want := rows(latency, tt.iters, tt.sizes...)
			for who, r := range map[string]tooltest.Result{"server": server, "client": client} {
				if r.Code != 0 || r.Stderr != tt.stderr() {
					t.Fatalf("%s: got status %d, stdout:\n%sstderr:\n%swant status 0 and no stderr", who, r.Code, r.Stdout, r.Stderr)
				}
				if !(passive && who == "server") && !strings.Contains(tt.flags, "report-both") && !want.MatchString(r.Stdout) {
					t.Errorf("%s: got\n%swant the table %v", who, r.Stdout, want)
				}
				if n := strings.Count(r.Stdout, "results: "); strings.Contains(tt.flags, "report-both") && n != 2 {
					t.Errorf("%s: got %d further tables, want 2:\n%s", who, n, r.Stdout)
				}
			}
			// Each prints the other's data as the other prints its own.
			local, remote := ends(server.Stdout, "local"), ends(server.Stdout, "remote")
			if len(local) != tt.qps || !slices.Equal(local, ends(client.Stdout, "remote")) || !slices.Equal(remote, ends(client.Stdout, "local")) {
				t.Errorf("got server\n%sclient\n%swant %d QPs, and each to print the other's data as the other does", server.Stdout, client.Stdout, tt.qps)
			}
			// Each end has one SRQ, and names it with all of its QPs.
			if xrc := strings.Contains(tt.flags, "XRC"); xrc != strings.Contains(client.Stdout, " SRQn 0x") || xrc != strings.Contains(client.Stdout, "Using SRQ      : ON") && !strings.Contains(tt.flags, "--use-srq") {
				t.Errorf("got\n%swant an SRQ with XRC", client.Stdout)
			}
		})
	}
}

// A completion vector that the device does not have.
func TestVector(t *testing.T) {
	server, client := runPair(t, "ib_send_bw", "-X 1", "-X 1")
	for who, r := range map[string]tooltest.Result{"server": server, "client": client} {
		if r.Code == 0 || !strings.Contains(r.Stderr, "completion vector 1: the device has 1 of them") {
			t.Errorf("%s: got status %d, stderr %s, want that the device has one vector", who, r.Code, r.Stderr)
		}
	}
}

// All sizes of -a. The largest is 8 MiB.
func TestAllSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("moves some hundred megabytes")
	}
	var sizes []string
	for i := 1; i <= 23; i++ {
		sizes = append(sizes, strconv.Itoa(1<<i))
	}
	for _, prog := range []string{"send_bw", "write_lat", "read_bw"} {
		t.Run(prog, func(t *testing.T) {
			_, client := runPair(t, "ib_"+prog, "-a -n 5", "-a -n 5")
			if want := rows(strings.HasSuffix(prog, "_lat"), "5", sizes...); client.Code != 0 || !want.MatchString(client.Stdout) {
				t.Errorf("got status %d, stderr %s\n%swant %v", client.Code, client.Stderr, client.Stdout, want)
			}
		})
	}
}

// Two processes use one device, one GID and so one UDP port.
func TestProcesses(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	for _, flags := range []string{"send_lat -n 100 -d soft_lo", "write_bw -n 50 -d soft_lo -R", "send_bw -n 20 -c UD -d soft_lo@127.0.88.73"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			argv := strings.Fields("ib_" + flags)
			argv = append(argv, "-p", tooltest.FreePort(t), "-u", patientTimeout)
			s := tooltest.StartProcess(ctx, t, argv...) // its first line comes when it listens
			c := tooltest.StartProcess(ctx, t, append(argv, "127.0.0.1")...)
			server, client := <-s.Done, <-c.Done
			if server.Code != 0 || client.Code != 0 {
				t.Errorf("got status %d and %d, want 0:\n%s%s%s%s", server.Code, client.Code, server.Stdout, server.Stderr, client.Stdout, client.Stderr)
			}
		})
	}
}

// With -D time ends the runs.
func TestDuration(t *testing.T) {
	for _, flags := range []string{"send_bw -s 4096", "send_bw -s 4096 -b", "write_bw", "send_lat", "write_lat", "read_lat"} {
		t.Run(strings.ReplaceAll(flags, " ", ""), func(t *testing.T) {
			prog, rest, _ := strings.Cut(flags, " ")
			server, client := runPair(t, "ib_"+prog, rest+" -D 1", rest+" -D 1")
			if server.Code != 0 || client.Code != 0 || !regexp.MustCompile(`\n \d+ +[1-9]\d*`+figure).MatchString(strings.ReplaceAll(client.Stdout, "\t", " ")) {
				t.Errorf("got status %d and %d, want 0 and a row:\n%s%s%s%s", server.Code, client.Code, server.Stdout, server.Stderr, client.Stdout, client.Stderr)
			}
		})
	}
}

// The outputs for other programs to read.
func TestReportsForPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.json")
	_, client := runPair(t, "ib_send_lat", "-n 20", "-n 20 --json --out_json --out_json_file="+file)
	var report jsonReport
	if err := json.Unmarshal([]byte(client.Stdout), &report); err != nil || client.Code != 0 {
		t.Fatalf("got status %d, %v:\n%s%s\nwant status 0 and JSON", client.Code, err, client.Stdout, client.Stderr)
	}
	if len(report.Latency) != 1 || report.Test != "send_lat" || report.Latency[0].Iterations != 20 ||
		report.Latency[0].Min <= 0 || report.Latency[0].Max < report.Latency[0].P99 || report.Latency[0].P99 < report.Latency[0].Typical {
		t.Errorf("got %+v, want the latency of 20 SENDs", report)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var classic struct {
		Info    map[string]any     `json:"test_info"`
		Results map[string]float64 `json:"results"`
	}
	if err := json.Unmarshal(text, &classic); err != nil || classic.Info["Connection_type"] != "RC" || classic.Results["n_iterations"] != 20 || classic.Results["percentile_99.9"] == 0 {
		t.Errorf("got %v and %+v from\n%s\nwant RC, 20 iterations and a percentile", err, classic, text)
	}
	for flag, want := range map[string]string{"bandwidth": `^\d+\.\d{6}\n$`, "message_rate": `^\d+\.\d{6}\n$`} {
		_, client := runPair(t, "ib_write_bw", "-n 20", "-n 20 --output="+flag)
		if !regexp.MustCompile(want).MatchString(client.Stdout) {
			t.Errorf("--output=%s: got %q, want one number", flag, client.Stdout)
		}
	}
	_, client = runPair(t, "ib_send_lat", "-n 20", "-n 20 -U")
	if !strings.Contains(client.Stdout, "\n#, usec\n1, ") || !strings.Contains(client.Stdout, "\n19, ") || strings.Contains(client.Stdout, "\n20, ") {
		t.Errorf("-U: got\n%swant 19 times", client.Stdout)
	}
}

// Ends that cannot measure together say why.
func TestMismatch(t *testing.T) {
	for _, tt := range []struct{ prog, server, client, want string }{
		{"ib_send_bw", "-n 20 -w 1e9", "-n 20 -w 1e9", "Error: BW result is below bw limit"},
		{"ib_send_bw", "-n 20 -q 2", "-n 20", ""},
		{"ib_send_bw", "-n 20", "-n 20 -q 2", ""},
		{"ib_send_bw", "-c UD -s 5000", "-c UD -s 5000", "Max message size in UD cannot be greater than MTU"},
	} {
		server, client := runPair(t, tt.prog, tt.server, tt.client)
		if strings.Contains(tt.server+tt.client, "-q") { // either end may be the first to notice
			tt.want, client.Stderr = errOtherQP.Error(), client.Stderr+server.Stderr
		}
		if client.Code != 1 || !strings.Contains(client.Stderr, tt.want) {
			t.Errorf("%s %s: got status %d, stderr %q, want %q; server: %d, %q", tt.prog, tt.client, client.Code, client.Stderr, tt.want, server.Code, server.Stderr)
		}
	}
}

// Ends with one key measure secured packets. Ends that do not agree say why.
func TestPSK(t *testing.T) {
	one, same, other := " --psk "+tooltest.PSK(t, "a"), " --psk "+tooltest.PSK(t, "a"), " --psk "+tooltest.PSK(t, "b")
	for _, prog := range []string{"ib_send_bw", "ib_read_lat"} {
		server, client := runPair(t, prog, "-R -n 20 -s 64"+one, "-R -n 20 -s 64"+same)
		for who, r := range map[string]tooltest.Result{"server": server, "client": client} {
			if r.Code != 0 || r.Stderr != "" {
				t.Errorf("%s, %s: got status %d, stderr %q, want none", prog, who, r.Code, r.Stderr)
			}
		}
	}
	for _, tt := range []struct{ server, client, want string }{
		{"-R" + one, "-R", "the listener demands packet security"},
		{"-R" + one, "-R" + other, "the listener has another pre-shared key"},
		{"-R", "-R" + one, "the peer does not offer packet security"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		port := tooltest.FreeCMPort()
		args := func(dev, flags string) []string {
			return append([]string{"ib_send_bw", "-p", port, "-n", "20", "-d", dev, "-u", patientTimeout}, strings.Fields(flags)...)
		}
		server := tool.StartUntil(ctx, "* Waiting for client to connect... *", args(serverDevice, tt.server)...)
		client := tool.Result(ctx, append(args(clientDevice, tt.client), serverAddr)...)
		if client.Code != 1 || !strings.Contains(client.Stderr, tt.want) {
			t.Errorf("server %q, client %q: got status %d, stderr %q, want %q", tt.server, tt.client, client.Code, client.Stderr, tt.want)
		}
		cancel() // the server waits on for one that has the key
		<-server
	}
	for flags, want := range map[string]string{one: "give -R as well", "-R -c UD" + one: "datagrams", "--psk /no/such/file": "read the pre-shared key"} {
		r := tool.Result(t.Context(), strings.Fields("ib_send_bw "+flags)...)
		if r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: got status %d, stderr %q, want %q", flags, r.Code, r.Stderr, want)
		}
	}
}

// A server whose client is gone ends, and says so.
func TestClientGone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	server := tool.StartUntil(ctx, "* Waiting for client to connect... *", "ib_send_bw", "-d", serverDevice, "-p", port, "-n", "100000000", "-u", patientTimeout)
	clientCtx, leave := context.WithCancel(ctx)
	client := tool.StartUntil(clientCtx, strings.TrimSuffix(bwHeading, "\n"), "ib_send_bw", "-d", clientDevice, "-p", port, "-n", "100000000", "127.0.0.1")
	leave()
	if r := <-client; r.Code != 130 {
		t.Errorf("client: got status %d, want 130: %s", r.Code, r.Stderr)
	}
	if r := <-server; r.Code != 1 || !strings.Contains(r.Stderr, errPeerGone.Error()) {
		t.Errorf("server: got status %d, stderr %q, want 1 and %q", r.Code, r.Stderr, errPeerGone)
	}
}

// A server that measures something else takes no messages. The client ends, and names the likely cause; then so does
// the server.
func TestProgramsDiffer(t *testing.T) {
	defer func(d time.Duration) { answerPatience = d }(answerPatience)
	answerPatience = time.Second
	for _, tt := range []struct{ server, client string }{
		{"ib_write_bw", "ib_send_bw"},
		{"ib_read_bw", "ib_send_bw"},
		{"ib_read_lat", "ib_send_lat"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		port := tooltest.FreePort(t)
		server := tool.StartUntil(ctx, "* Waiting for client to connect... *", tt.server, "-d", serverDevice, "-p", port, "-u", patientTimeout)
		client := tool.Result(ctx, tt.client, "-d", clientDevice, "-p", port, "-u", patientTimeout, "127.0.0.1")
		want := "is it " + strings.TrimPrefix(tt.client, "ib_") + " too, with the same flags?"
		if client.Code != 1 || !strings.Contains(client.Stderr, want) {
			t.Errorf("%s and %s: client: got status %d, stderr %q, want status 1 and %q", tt.server, tt.client, client.Code, client.Stderr, want)
		}
		if r := <-server; r.Code != 1 || !strings.Contains(r.Stderr, errPeerGone.Error()) {
			t.Errorf("%s and %s: server: got status %d, stderr %q, want status 1 and %q", tt.server, tt.client, r.Code, r.Stderr, errPeerGone)
		}
		cancel()
	}
}
