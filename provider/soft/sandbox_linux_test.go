//go:build !adverb_portable

package soft_test

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/verbs"
)

// lineWriter hands each line of a log on.
type lineWriter chan string

func (w lineWriter) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// In a sandbox that refuses every option of sockets that can be done without, devices work. The log names the loss by each
// once, and so do the device's attributes. A sandbox that refuses only the options that sharing an address needs has a
// device too.
func TestSandboxOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		deny []string
		log  []string // parts of the records that there must be, each once
	}{
		"all":          {slices.Collect(maps.Keys(linktest.Options)), []string{"shares neither memory nor addresses", "option=SO_RXQ_OVFL ", "option=SO_RCVBUF ", "option=IP_RECVTOS ", "option=IP_MTU_DISCOVER ", "option=UDP_GRO "}},
		"SO_REUSEPORT": {[]string{"SO_REUSEPORT"}, []string{"shares neither memory nor addresses"}},
		"SO_PASSCRED":  {[]string{"SO_PASSCRED"}, []string{"shares neither memory nor addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			if !usertest.In(t) {
				return
			}
			if err := linktest.RefuseOptions(unix.EPERM, unix.SECCOMP_FILTER_FLAG_TSYNC, tt.deny...); err != nil {
				t.Skipf("SKIPPED, and so this shows nothing: no seccomp: %v", err)
			}
			at := func(i int) *verbs.Device {
				dev, err := verbs.Open(loopback(t) + "@" + loopAddr(i))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { dev.Close() })
				return dev
			}
			a, b := at(38), at(39)
			lines := make(lineWriter, 100)
			if err := a.SetLogger(slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
				t.Fatal(err)
			}
			qp := dialBetween(t, a, b, loopAddr(39))
			if got := qp.Carrier(); got != verbs.CarrierUDP {
				t.Errorf("the carrier is %q, want %q", got, verbs.CarrierUDP)
			}
			log := ""
			for !strings.Contains(log, "QP changed its state") { // records of the moment when the logger is set come before
				log += <-lines
			}
			for _, want := range tt.log {
				if n := strings.Count(log, want); n != 1 {
					t.Errorf("the log has %q %d times, want once:\n%s", want, n, log)
				}
			}
			attr, err := a.Query()
			if err != nil || strings.Contains(attr.RefusedOptions, "SO_RXQ_OVFL: operation not permitted: drop_overflow") != (name == "all") {
				t.Errorf("the device's refused options: %q, %v", attr.RefusedOptions, err)
			}
		})
	}
}
