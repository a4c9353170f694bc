package lab

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// ratesEnv makes TestRates measure.
const ratesEnv = "ADVERB_LAB_RATES"

// TestRates compares, within one guest, the kernel's iWARP and RoCE with ours: both ends are there, and the same
// flags of perftest. It reports what bare sockets yield there, too. It judges nothing: the CPU is emulated, and
// what others do on this machine counts. The programs' own clocks are of no use on such a CPU, so the time is the
// host's, for many iterations less the time for few.
func TestRates(t *testing.T) {
	needLab(t)
	if os.Getenv(ratesEnv) == "" {
		t.Skipf("set %s=1 to measure, on a machine that does nothing else", ratesEnv)
	}
	for _, device := range []string{deviceSiw, deviceRxe} {
		t.Run(device, func(t *testing.T) {
			l := ownLab(t.Context(), t, Config{MTU: 9000, Device: device})
			put(t.Context(), t, l.Guest(0), l.Host().bin, guestBinary)
			sockets(t, l.Guest(0))
			for _, p := range []struct {
				program, flags string
				few, many      int
			}{
				{"write_bw", "-s 1048576 -t 4", 10, 400},
				{"write_bw", "-s 65536 -t 16", 50, 4000},
				{"send_lat", "-s 64", 200, 8000},
			} {
				for range 3 {
					r := rates{t: t, g: l.Guest(0), device: device, program: p.program, flags: p.flags}
					kernel, err := r.each("kernel", p.few, p.many)
					if err != nil { // siw hangs now and then: see rpingSiw
						t.Logf("%s %s: nothing of the kernel's: %v", p.program, p.flags, err)
						continue
					}
					ours, err := r.each("ours", p.few, p.many)
					if err != nil {
						t.Fatal(err)
					}
					t.Logf("%s %s: kernel %v an iteration, ours %v; ours is %.2f times as fast", p.program, p.flags, kernel, ours, kernel.Seconds()/ours.Seconds())
				}
			}
		})
	}
}

// sockets reports what programs of the guest get out of bare TCP and UDP sockets, which the kernel's RDMA does not
// go through. On an emulated CPU instructions count, however many a real one executes at a time.
func sockets(t *testing.T, g *Guest) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	out, err := g.Run(ctx, "unshare", "-n", "sh", "-c", "ip link set lo up; "+guestBinary+
		" bench -n loopback -w write_64k,write_1m,lat_polled -p adverb,probe,tcp,iwarp -r 3 -t 1s")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
}

// rates measures a program of perftest whose ends are both in a guest.
type rates struct {
	t              *testing.T
	g              *Guest
	device         string // the guest's device: deviceSiw or deviceRxe
	program, flags string
}

// each returns the time of an iteration.
func (r *rates) each(whose string, few, many int) (time.Duration, error) {
	a, err := r.run(whose, few)
	if err != nil {
		return 0, err
	}
	b, err := r.run(whose, many)
	return (b - a) / time.Duration(many-few), err
}

// run returns how long a client runs.
func (r *rates) run(whose string, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*patience)
	defer cancel()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	addr := r.g.Addr(false).String()
	shell := []string{"sh", "-c"}
	before := ""
	argv := append([]string{"-p", at.port, "-F", "-n", fmt.Sprint(n)}, strings.Fields(r.flags)...)
	switch {
	case whose == "kernel" && r.device == deviceSiw:
		argv = append([]string{"ib_" + r.program, "-d", r.g.Device, "-R"}, argv...)
	case whose == "kernel":
		argv = append([]string{"ib_" + r.program, "-d", r.g.Device, "-x", fmt.Sprint(r.g.GIDIndex(false)), "-m", "4096"}, argv...)
	case r.device == deviceSiw:
		argv = append([]string{guestBinary, r.program, "-d", "iw_eth0", "-R"}, argv...)
	default:
		// The kernel has UDP port 4791 of the guest's own network namespace.
		shell, before = []string{"unshare", "-n", "sh", "-c"}, "ip link set lo up; export ADVERB_SHM=0; "
		argv = append([]string{guestBinary, r.program, "-d", "soft_lo", "-m", "4096"}, argv...)
		addr = "127.0.0.1"
	}
	one := strings.Join(argv, " ")
	script := fmt.Sprintf(`%s >/run/server.log 2>&1 & s=$!
for i in 1 2 3 4 5 6 7 8 9 10; do usleep 300000; %s %s >/run/client.log 2>&1 && exec echo done; kill -0 $s || break; done
cat /run/server.log /run/client.log; exit 1`, one, one, addr)
	begun := time.Now()
	if out, err := r.g.Run(ctx, append(shell, before+script)...); err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", one, err, out)
	}
	return time.Since(begun), nil
}
