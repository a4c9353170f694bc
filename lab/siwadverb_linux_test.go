package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// Our iWARP speaks with the kernel's: each end serves, over IPv4 and IPv6, with CRCs and without. tshark
// decodes what our end has captured. Where siw is lacking the test fails: nothing of ours was shown.
func TestSiwAdverb(t *testing.T) {
	needLab(t)
	ctx := within(t, bootPatience+4*patience)
	l, err := Start(ctx, Config{MTU: 1500, Device: deviceSiw})
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, l)
	for _, server := range []string{"adverb", "kernel"} {
		for _, v6 := range []bool{false, true} {
			for _, crc := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s serves, IPv6 %v, CRC %v", server, v6, crc), func(t *testing.T) {
					ip := "IPv4"
					if v6 {
						ip = "IPv6"
					}
					note := "iWARP (siw)"
					if crc {
						note += ", with CRCs"
					}
					recordTest(t, "Connection manager", resultRow{program: "rping", server: server, ip: ip, mtu: 1500}, note)
					rpingAdverb(ctx, t, l, server == "adverb", v6, crc)
				})
			}
		}
	}
}

// rpingAdverb has rping move data between our end and a guest.
func rpingAdverb(ctx context.Context, t *testing.T, l *Lab, weServe, v6, crc bool) {
	t.Helper()
	const rounds, size = 5, 65535
	h, g := l.Host(), l.Guest(0)
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	ours := []string{"env", "ADVERB_IWARP=1", "ADVERB_PCAP=" + file, "ADVERB_IWARP_CRC=" + map[bool]string{false: "0", true: "1"}[crc], h.bin, "rping"}
	options := []string{"-v", "-V", "-C", strconv.Itoa(rounds), "-S", strconv.Itoa(size), "-p", at.port}
	var srv, cli *Process
	if weServe {
		srv = start(ctx, t, h, append(append(ours, options...), "-s", "-a", h.Addr(v6).String())...)
		port, err := strconv.Atoi(at.port)
		if err == nil {
			err = h.AwaitTCP(ctx, port)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, srv.Report())
		}
		cli = start(ctx, t, g, cmArgv(g, "rping", append(options, "-c", "-a", h.Addr(v6).String())...)...)
	} else {
		srv = startCM(ctx, t, g, at, cmArgv(g, "rping", append(options, "-s", "-a", anyAddr(v6))...)...)
		cli = start(ctx, t, h, append(append(ours, options...), "-c", "-a", g.Addr(v6).String())...)
	}
	left, err := ends(srv, cli)
	if err != nil {
		t.Fatal(err)
	}
	wantOutput(t, "rping's client", left[1].Stdout, rpingLines("ping data", rounds, size))
	out, err := exec.CommandContext(ctx, "tshark", "-r", file, "-T", "fields", "-e", "iwarp_rdma.opcode", "-e", "iwarp_mpa.crc_check", "-e", "_ws.malformed", "-Y", "iwarp_mpa").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	messages := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if f[0] != "" {
			messages++
		}
		if len(f) > 2 && f[2] != "" {
			t.Errorf("tshark finds it malformed: %s", line)
		}
	}
	if messages < 4*rounds {
		t.Errorf("tshark finds %d iWARP packets, want %d at least", messages, 4*rounds)
	}
}
