package inspect

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

var tool = tooltest.New(Stat, Res)

// ownDevice is a device that no other program of the host has open under this name, and that this one has not had open
// before opened: the counters of a device go on when it is opened again.
var (
	ownDevice string
	devices   int
)

// opened opens ownDevice with a QP in RTS, connected to itself, that has sent one message.
func opened(t *testing.T) *verbs.QP {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ownDevice = fmt.Sprintf("soft_lo@127.31.%d.%d", 7+devices/250, 1+devices%250)
	devices++
	dev, err := verbs.Open(ownDevice)
	ok(err)
	pd, err := dev.AllocPD()
	ok(err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	ok(err)
	cq, err := dev.CreateCQ(16)
	ok(err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 1}})
	ok(err)
	gid, err := dev.GID(1, 0)
	ok(err)
	ok(qp.Init(1, verbs.AccessRemoteWrite))
	ok(qp.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid.GID}, verbs.Path{}))
	ok(qp.RTS(0, verbs.DefaultRetry))
	_, err = qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 100)}, Remote: mr.Remote(1000)}})
	ok(err)
	var wcs [1]verbs.WC
	_, err = cq.Wait(t.Context(), wcs[:])
	ok(err)
	ok(wcs[0].Err())
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{qp, cq, mr, pd, dev} {
			ok(c.Close())
		}
	})
	return qp
}

// lines returns the fields of the lines of a table that begin with this process's ID, and the heading.
func lines(t *testing.T, out string) (head []string, rows [][]string) {
	t.Helper()
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case head == nil:
			head = f
		case len(f) > 0 && f[0] == strconv.Itoa(os.Getpid()):
			rows = append(rows, f)
		}
	}
	return head, rows
}

// Other programs of the host may be silent, and the status is then 1. These tests look at this program.
func TestStat(t *testing.T) {
	qp := opened(t)
	_, out, _ := tool.Run(t.Context(), "adverb", "stat", ownDevice)
	head, rows := lines(t, out)
	if len(rows) != 1 || len(rows[0]) != len(head) || head[3] != "QPS" || rows[0][2] != ownDevice || rows[0][3] != "1" || rows[0][4] != "2" {
		t.Errorf("stat prints\n%swant one line of this process: one QP, two packets sent", out)
	}
	_, out, _ = tool.Run(t.Context(), "adverb", "stat", "-q", ownDevice)
	if _, rows := lines(t, out); len(rows) != 1 || rows[0][3] != fmt.Sprintf("0x%06x", uint32(qp.QPN())) || rows[0][4] != "RC" || rows[0][5] != "RTS" {
		t.Errorf("stat -q prints\n%swant a line of the QP", out)
	}
	_, out, _ = tool.Run(t.Context(), "adverb", "stat", "-v", ownDevice)
	if !strings.Contains(out, "rdma_writes") || !strings.Contains(out, "WRITE work requests that succeeded") || strings.Contains(out, "retrans_pkts") {
		t.Errorf("stat -v prints\n%swant the counters that are not 0, described", out)
	}
}

// With --watch the lines are the growth in the meantime.
func TestStatWatch(t *testing.T) {
	opened(t)
	_, out, _ := tool.Run(t.Context(), "adverb", "stat", "-w", "-i", "0.1", "-c", "2", ownDevice)
	head, rows := lines(t, out)
	if len(rows) != 2 || head[4] != "SENT/s" || rows[0][4] != "0" || rows[1][4] != "0" {
		t.Errorf("stat -w -c 2 prints\n%swant two lines of this process, with nothing new", out)
	}
}

// The growth in a second is the growth since the latest look, by the seconds since then.
func TestStatRate(t *testing.T) {
	var out strings.Builder
	s := stat{inv: &cli.Invocation{Ctx: t.Context(), Stdout: &out, Stderr: io.Discard}, watch: true}
	for i, since := range []time.Duration{0, 2 * time.Second} {
		d := watch.Device{Name: ownDevice, Counters: map[string]uint64{"sent_pkts": 1000 + 5000*uint64(i)}}
		s.print([]watch.Process{{PID: os.Getpid(), Command: "x", Devices: []watch.Device{d}}}, since)
	}
	if head, rows := lines(t, out.String()); len(rows) != 1 || head[4] != "SENT/s" || rows[0][4] != "2500" {
		t.Errorf("stat -w prints\n%swant 2500 packets sent in a second: 5000 came in two", &out)
	}
}

// Without a count, --watch goes on until the user ends it.
func TestStatWatchEndless(t *testing.T) {
	opened(t)
	for _, command := range []string{"stat", "res"} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		defer cancel()
		r := make(chan tooltest.Result, 1)
		read, write := io.Pipe()
		go func() {
			var stderr strings.Builder
			code := tool.RunTo(ctx, write, &stderr, "adverb", command, "-w", "-i", "0.1", ownDevice)
			write.Close()
			r <- tooltest.Result{Code: code, Stderr: stderr.String()}
		}()
		tables := 0
		for out := bufio.NewScanner(read); out.Scan(); {
			if strings.Contains(out.Text(), "COMMAND") {
				if tables++; tables == 3 {
					cancel()
				}
			}
		}
		if got := <-r; tables < 3 || got.Code != cli.StatusInterrupted {
			t.Errorf("%s -w: %d tables, status %d, stderr %q; want 3 and more until it is interrupted", command, tables, got.Code, got.Stderr)
		}
	}
}

// The README shows the tool's output.
func TestStatREADME(t *testing.T) {
	text, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	opened(t)
	_, out, _ := tool.Run(t.Context(), "adverb", "stat", "-w", "-i", "0.1", "-c", "1", ownDevice)
	head, rows := lines(t, out)
	_, shown, ok := strings.Cut(string(text), "$ adverb stat -w\n")
	if shown, _, _ = strings.Cut(shown, "```"); !ok || shown == "" {
		t.Fatal("the README has no output of adverb stat -w")
	}
	for line := range strings.Lines(shown) {
		switch f := strings.Fields(line); {
		case len(f) == 0:
		case f[0] == "PID" && !slices.Equal(f, head):
			t.Errorf("the README has the heading %q, and the tool prints %q, want the same", f, head)
		case len(f) != len(rows[0]):
			t.Errorf("the README has the line %q, and the tool prints lines like %q, want as many columns", f, rows[0])
		}
	}
}

func TestStatJSON(t *testing.T) {
	qp := opened(t)
	_, out, _ := tool.Run(t.Context(), "adverb", "stat", "--json", "-q", ownDevice)
	var all []watch.Process
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(all) != 1 || all[0].PID != os.Getpid() || len(all[0].Devices) != 1 {
		t.Fatalf("stat --json prints\n%swant this process with its device", out)
	}
	d := all[0].Devices[0]
	if d.Counters["rdma_writes"] != 1 || d.Port["port_xmit_packets"] < 2 || len(d.QP) != 1 || d.QP[0].Counters["rdma_writes"] != 1 || d.QP[0].QPN != uint32(qp.QPN()) {
		t.Errorf("device %+v, want one WRITE of two packets or more counted by the device and by its QP", d)
	}
}

func TestRes(t *testing.T) {
	qp := opened(t)
	_, out, _ := tool.Run(t.Context(), "adverb", "res", ownDevice)
	if _, rows := lines(t, out); len(rows) != 1 || strings.Join(rows[0][3:], " ") != "1 1 1 1 0 0 0 0" {
		t.Errorf("res prints\n%swant one PD, CQ, QP and MR, and nothing else", out)
	}
	number := fmt.Sprintf("0x%06x", uint32(qp.QPN()))
	for kind, want := range map[string]string{
		"pd": "pd 1", "cq": "cq 1 16", "qp": number + " RC RTS " + number + " ::ffff:" + strings.TrimPrefix(ownDevice, "soft_lo@"), "mr": "4096 pd 1 LOCAL_WRITE|REMOTE_WRITE",
	} {
		_, out, _ := tool.Run(t.Context(), "adverb", "res", kind, ownDevice)
		if _, rows := lines(t, out); len(rows) != 1 || !strings.Contains(strings.Join(rows[0], " "), want) {
			t.Errorf("res %s prints\n%swant a line with %q", kind, out, want)
		}
	}
	_, out, _ = tool.Run(t.Context(), "adverb", "res", "cm_id", ownDevice)
	if head, rows := lines(t, out); len(rows) != 0 || head[3] != "LQPN" {
		t.Errorf("res cm_id prints\n%swant the heading alone", out)
	}
}

func TestNone(t *testing.T) {
	for _, command := range []string{"stat", "res"} {
		code, out, stderr := tool.Run(t.Context(), "adverb", command, "soft_nosuch\x1b[2J")
		want := "no program of this user has device soft_nosuch?[2J open"
		if code != cli.ExitOK { // others were silent
			want = "no program that has answered has device soft_nosuch?[2J open"
		}
		if !strings.Contains(stderr, want) || !strings.Contains(out, "PID") {
			t.Errorf("%s: stdout %q, stderr %q, want the heading, and that nobody has the device open", command, out, stderr)
		}
	}
}

// hangUp listens as a program of this user does, and answers nobody.
func hangUp(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", fmt.Sprintf("@adverb/watch/%d/%d-%s", os.Geteuid(), os.Getpid(), t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	}()
}

// The status tells that a program did not answer. This one hangs up.
func TestSilent(t *testing.T) {
	hangUp(t)
	for _, command := range []string{"stat", "res"} {
		code, _, stderr := tool.Run(t.Context(), "adverb", command)
		if want := fmt.Sprintf("pid %d: it hung up", os.Getpid()); code != cli.ExitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: got status %d, stderr %q, want status %d and %q", command, code, stderr, cli.ExitError, want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{
		{"-w", "-i", "0"}, {"-w", "-i", "x"}, {"-w", "-i", "NaN"}, {"-w", "-i", "1e9"}, {"-w", "-c", "0"}, {"-w", "-c", "-1"}, {"--nope"},
		{"soft_lo", "soft_eth0"}, {"show", "qp"},
	} {
		for _, command := range []string{"stat", "res"} {
			code, out, stderr := tool.Run(t.Context(), append([]string{"adverb", command}, args...)...)
			if code != cli.ExitUsage || !strings.Contains(out, "Usage:") || stderr == "" {
				t.Errorf("%s %q: status %d, stdout %q, stderr %q; want %d, the usage and a cause", command, args, code, out, stderr, cli.ExitUsage)
			}
		}
	}
}

func TestAmount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 9999: "9999", 10000: "10k", 9999499: "9999k", 1e7: "10M", 1.5e10: "15G", 1e20: "100E"} {
		if got := amount(v); got != want {
			t.Errorf("%v is printed as %s, want %s", v, got, want)
		}
	}
}

// A program's text cannot break the table or move the cursor.
func TestTable(t *testing.T) {
	var b strings.Builder
	table(&b, [][]string{{"A", "B"}, {"x\ty", "\x1b[2J"}}, 0)
	if got, want := b.String(), "A    B\nx?y  ?[2J\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
