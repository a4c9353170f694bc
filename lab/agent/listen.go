package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// How often the tables of the kernel are looked at. They offer no event.
const pollInterval = 3 * time.Millisecond

// AwaitTCP returns when a TCP socket of this machine listens on the port.
func AwaitTCP(ctx context.Context, port int) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			text, err := os.ReadFile(table)
			if err == nil && listens(text, port) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a listener on TCP port %d: %w", port, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// listens reads a table of sockets, as in "0: 00000000:4853 00000000:0000 0A …".
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
