//go:build !linux

package probe

import "net/netip"

// Open is for Linux.
func Open(netip.Addr) (Socket, error) { return nil, ErrUnsupported }
