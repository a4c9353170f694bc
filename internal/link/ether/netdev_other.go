//go:build !linux || adverb_portable

package ether

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/adverb-rdma/adverb/internal/link"
)

func permitted() error {
	return fmt.Errorf("RoCEv1 needs Linux's packet sockets, which %s does not have: use RoCEv2: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (n *Netdev) open(addr netip.Addr) (link.Link, error) { return nil, permitted() }
