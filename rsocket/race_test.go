//go:build race

package rsocket_test

const raceEnabled = true
