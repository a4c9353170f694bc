//go:build !linux

package rnic

import "time"

// setUserTimeout does nothing: the retries of the system's TCP count.
func setUserTimeout(keepAliveConn, time.Duration) error { return nil }
