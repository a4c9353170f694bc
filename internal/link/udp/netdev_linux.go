package udp

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// speedMbps returns 0 for an interface that has no speed, such as loopback, or no carrier.
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

// watch has the kernel report changes of interfaces and addresses, and looks for them by itself where
// a sandbox forbids that. It returns how to end it.
func watch(d *Netdev) (stop func()) {
	done := make(chan struct{})
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err == nil && d.follow(conn, done) {
			return
		}
		d.poll(pollInterval, done)
	})
	return func() {
		close(done)
		if err == nil {
			conn.Close()
		}
		wg.Wait()
	}
}

// follow notifies of everything that the kernel reports, on whichever interface: an interface can come
// back under another index, and looking once too often costs little. It reports false when
// the kernel's reports ended without Close.
func (d *Netdev) follow(conn *netlink.Conn, done <-chan struct{}) bool {
	for {
		_, err := conn.Receive()
		select {
		case <-done:
			return true
		default:
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // which means that reports were lost
			return false
		}
		d.notify()
	}
}
