package udp

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// speedMbps returns the speed of an interface, or 0 if the interface has none, such as loopback, or has no carrier.
func speedMbps(name string) int {
	text, err := os.ReadFile("/sys/class/net/" + name + "/speed")
	if err != nil {
		return 0
	}
	mbps, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || mbps < 0 {
		return 0
	}
	return mbps
}

// reports has the kernel report changes of interfaces and addresses. follow calls tell at each report, whatever its
// subject: an interface can come back with another index. follow returns false if the reports have ended before done
// was closed, and is nil where a sandbox forbids them. hang ends follow, after done is closed.
func reports() (hang func(), follow func(tell func(), done <-chan struct{}) bool) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
	if err != nil {
		return func() {}, nil
	}
	follow = func(tell func(), done <-chan struct{}) bool {
		for {
			_, err := conn.Receive()
			select {
			case <-done:
				return true
			default:
			}
			if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS means that reports were lost
				return false
			}
			tell()
		}
	}
	return func() { conn.Close() }, follow
}
