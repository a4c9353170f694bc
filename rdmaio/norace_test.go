//go:build !race

package rdmaio

const raceEnabled = false
