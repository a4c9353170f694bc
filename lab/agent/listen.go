package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

const pollInterval = 3 * time.Millisecond

// Poll calls f until f returns true. Use Poll for tables of the kernel, whose changes are no events.
// Poll returns an error only when ctx ends.
func Poll(ctx context.Context, f func() bool) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// AwaitTCP returns when a TCP socket of this machine listens on the port.
func AwaitTCP(ctx context.Context, port int) error {
	err := Poll(ctx, func() bool {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(table)
			if err == nil && listens(text, port) {
				return true
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("wait for a listener on TCP port %d: %w", port, err)
	}
	return nil
}

// listens reports whether a table of sockets has a listener on the port. The table has lines such as
// "0: 00000000:4853 00000000:0000 0A …".
func listens(table []byte, port int) bool {
	const stateListen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) > 3 && strings.HasSuffix(f[1], suffix) && f[3] == stateListen {
			return true
		}
	}
	return false
}
