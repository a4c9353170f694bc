package soft

import (
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/ether"
	"github.com/adverb-rdma/adverb/verbs"
)

// envRoCEv1 gives devices GIDs of RoCEv1.
const envRoCEv1 = "ADVERB_ROCEV1"

// roceV1 is a value of envRoCEv1.
type roceV1 uint8

const (
	noV1    roceV1 = iota
	lastV1         // behind the GIDs of RoCEv2
	firstV1        // before them, so that rdmacm connects by RoCEv1
)

func parseRoCEv1(s string) (roceV1, error) {
	switch s {
	case "0":
		return noV1, nil
	case "1":
		return lastV1, nil
	case "first":
		return firstV1, nil
	}
	return noV1, verbs.Errorf(verbs.ErrInvalid, "%q: say 1 for GIDs of RoCEv1 behind those of RoCEv2, first for GIDs before them, or 0 for none", s)
}

// withV1 gives a device's network interface addresses of RoCEv1. At these the process is alone: no other process has the
// services there.
func withV1(inner link.Netdev, order roceV1, c *hca.Config) (link.Netdev, error) {
	if order == noV1 {
		return inner, nil
	}
	n, err := ether.New(inner, ether.Options{First: order == firstV1, One: strings.Contains(c.Name, "@")})
	if err != nil {
		return nil, verbs.Errorf(err, "%s: %w", envRoCEv1, err)
	}
	claim, share, words := c.ClaimService, c.ShareService, c.LastWords
	c.ClaimService = func(addr netip.Addr, service uint64) (release func(), ok bool, err error) {
		if link.IsV1(addr) {
			return func() {}, true, nil
		}
		return claim(addr, service)
	}
	c.ShareService = func(addr netip.Addr, service uint64) (own func() (bool, error), release func(), ok bool, err error) {
		if link.IsV1(addr) {
			return func() (bool, error) { return true, nil }, func() {}, true, nil
		}
		return share(addr, service)
	}
	c.LastWords = func(from, to netip.Addr, class uint8, mad []byte) (revoke func()) {
		if link.IsV1(from) || link.IsV1(to) {
			return func() {}
		}
		return words(from, to, class, mad)
	}
	return n, nil
}
