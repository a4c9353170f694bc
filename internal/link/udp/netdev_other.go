//go:build !linux

package udp

import "sync"

// speedMbps is not known here.
func speedMbps(string) int { return 0 }

// watch looks for changes every few seconds. It returns how to end it.
func watch(d *Netdev) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { d.poll(pollInterval, done) })
	return func() {
		close(done)
		wg.Wait()
	}
}
