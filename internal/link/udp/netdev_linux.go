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

// speedMbps returns the speed of an interface. It is 0 if the interface has none, such as loopback,
// or has no carrier.
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

// watch has the kernel report changes of interfaces and addresses. Where a sandbox forbids that, it
// looks for changes itself. stop ends the watch.
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

// follow notifies of every report of the kernel, whatever interface it is about. An interface can
// come back with another index, and one look too many costs little. follow reports false if the
// kernel's reports have ended without Close.
func (d *Netdev) follow(conn *netlink.Conn, done <-chan struct{}) bool {
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
		d.notify()
	}
}
