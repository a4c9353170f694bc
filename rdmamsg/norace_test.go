//go:build !race

package rdmamsg_test

const raceEnabled = false
