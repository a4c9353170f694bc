//go:build !linux

package capture

import (
	"fmt"
	"runtime"
)

// Live captures the frames of a network interface: on Linux alone.
type Live struct{}

// OpenLive always fails.
func OpenLive(name string) (*Live, error) {
	return nil, fmt.Errorf("capture %s: not possible on %s: read what another program captures: tcpdump -U -i %s -w - | adverb diagnose -", name, runtime.GOOS, name)
}

// Next always fails.
func (l *Live) Next() (Frame, error) { return Frame{}, ErrQuiet }

// Follow does nothing.
func (l *Live) Follow(ports []uint16) error { return nil }

// Lost returns 0.
func (l *Live) Lost() int { return 0 }

// Close does nothing.
func (l *Live) Close() error { return nil }
