package lab

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// perftest is one of perftest's programs, with the flags that both ends get.
type perftest struct {
	name  string
	flags []string // one scenario each
}

// The programs compare no data. Datagrams are few, since nothing repeats them.
var perftests = []perftest{
	{"send_bw", []string{"-n 50", "-n 50 -R", "-n 20 -c UC -s 4095", "-n 20 -c UD -s 1024", "-n 20 -c UD -R -s 1024", "-n 20 -b",
		"-n 20 -q 3 --use-srq -s 5000", "-n 20 -l 5 -s 1", "-n 20 -e -s 100", "-n 20 -b -c UD -R -s 64"}},
	{"send_lat", []string{"-n 50", "-n 50 -R", "-n 20 -c UC -s 4095", "-n 20 -c UD -s 1024", "-n 20 -c UD -R -s 1024", "-n 20 -e"}},
	{"write_bw", []string{"-n 50", "-n 50 -R", "-n 20 -c UC -s 4095", "-n 20 -b", "-n 20 -q 3 -s 5000", "-n 20 -R -q 3 -s 5000"}},
	{"write_lat", []string{"-n 50", "-n 50 -R", "-n 20 -c UC -s 4095"}},
	{"read_bw", []string{"-n 50", "-n 50 -R", "-n 20 -b -o 4", "-n 20 -e"}},
	{"read_lat", []string{"-n 50", "-n 50 -R", "-n 20 -e"}},
	{"atomic_bw", []string{"-n 50", "-n 50 -R", "-n 20 -b -A CMP_AND_SWAP"}},
	{"atomic_lat", []string{"-n 50", "-n 50 -R"}},
}

func TestPerftest(t *testing.T) {
	needLab(t)
	for _, p := range perftests {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				for i, flags := range p.flags {
					if v6 && i > 0 { // the exchange is the same: only the GIDs are IPv6 addresses
						break
					}
					s := scenario{family: "perftest", program: p.name, server: server, v6: v6, mtu: mtus[0], variant: flags}
					// Messages that are not acknowledged go one way.
					unacknowledged := strings.Contains(flags, "-c U") && !strings.Contains(flags, "-R") && !strings.Contains(flags, "-b")
					s.check.oneWay = unacknowledged && strings.HasSuffix(p.name, "_bw")
					s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { p.run(ctx, t, l, s) })
				}
			}
		}
	}
}

func (p *perftest) run(ctx context.Context, t *testing.T, l *Lab, s scenario) {
	port := nextPort()
	byCM := strings.Contains(s.variant, "-R")
	// An emulated guest answers late.
	options := append([]string{"-p", port, "-F", "-u", "20"}, strings.Fields(s.variant)...)
	argv := func(side Side) []string {
		if ours, ok := side.(ourSide); ok {
			return append([]string{"adverb", p.name, "-d", ours.Device(s.v6), "-x", strconv.Itoa(gidIndex(side, s.v6))}, options...)
		}
		argv := []string{"ib_" + p.name, "-d", l.Guest(0).Device}
		if !s.bySiw() { // which has no GIDs of addresses
			argv = append(argv, "-x", strconv.Itoa(gidIndex(side, s.v6)))
		}
		return append(argv, options...)
	}
	server, client := s.sides(l)
	var srv *Process
	if byCM {
		srv = s.startCM(ctx, t, server, cmPort{rdmacm.PortSpaceTCP, port}, argv(server)...)
	} else {
		srv = start(ctx, t, server, argv(server)...)
		awaitListening(ctx, t, server, port, srv)
	}
	// The C programs of perftest 4.5 use IPv4 for the exchange even if the GIDs are IPv6 addresses.
	cli := start(ctx, t, client, append(argv(client), server.Addr(false).String())...)
	left := finish(t, srv, cli)
	p.compare(t, s, left[0].Stdout, left[1].Stdout)
	p.measured(t, s, "server", server, left[0].Stdout)
	p.measured(t, s, "client", client, left[1].Stdout)
	if t.Failed() {
		t.Logf("%s%s", srv.Report(), cli.Report())
	}
}

// measured checks that a program that measures reports the messages.
func (p *perftest) measured(t *testing.T, s scenario, who string, side Side, out string) {
	t.Helper()
	if passive := p.name == "read_lat" || p.name == "atomic_lat"; passive && who == "server" {
		return
	}
	qps, messages := s.perftestCounts()
	figure := `\d+\.\d\d`
	if _, ours := side.(ourSide); !ours {
		// The C program measures its clock first. It does not always succeed on an emulated CPU, and then
		// has messages but no times.
		figure += "|inf"
	}
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^ \d+ +%d +(%s)`, qps*messages, figure))
	if !row.MatchString(out) {
		t.Errorf("the %s reports no %d messages", who, qps*messages)
	}
}

// perftestCounts returns how many QPs there are and how many messages each has.
func (s scenario) perftestCounts() (qps, messages int) {
	qps = 1
	fields := strings.Fields(s.variant)
	for i, f := range fields {
		switch f {
		case "-q":
			qps, _ = strconv.Atoi(fields[i+1])
		case "-n":
			messages, _ = strconv.Atoi(fields[i+1])
		}
	}
	return qps, messages
}

// compare checks that two programs name the same QPs.
func (p *perftest) compare(t *testing.T, s scenario, server, client string) {
	t.Helper()
	qps, _ := s.perftestCounts()
	local, remote := perftestEnds(server, "local"), perftestEnds(server, "remote")
	if len(local) != qps || len(remote) != qps {
		t.Errorf("the server names %d and %d ends, want %d of each", len(local), len(remote), qps)
	}
	if got := perftestEnds(client, "remote"); !slices.Equal(got, local) {
		t.Errorf("the server in the client's words: got %q, want the server's own %q", got, local)
	}
	if got := perftestEnds(client, "local"); !slices.Equal(got, remote) {
		t.Errorf("the client in its own words: got %q, want the server's %q", got, remote)
	}
}

// perftestEnds returns the QPNs, PSNs and what else is in lines as
// " local address: LID 0000 QPN 0x0011 PSN 0x6ecf3b RKey 0x000204 VAddr 0x007f8e5a4d5000".
func perftestEnds(out, which string) (ends []string) {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, " "+which+" address: LID "); ok {
			_, end, _ := strings.Cut(strings.TrimSpace(rest), " ") // LIDs have no meaning for RoCE
			ends = append(ends, end)
		}
	}
	return ends
}
