//go:build race

package rnic

// raceEnabled: the race detector makes sync.Pool forget, so that allocations are not counted.
const raceEnabled = true
