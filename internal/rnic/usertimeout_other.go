//go:build !linux

package rnic

import "time"

// setUserTimeout does nothing: the retries of the system's TCP count.
func setUserTimeout(keeper, time.Duration) error { return nil }
