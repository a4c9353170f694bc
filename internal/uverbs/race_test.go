//go:build race && linux

package uverbs

const raceEnabled = true
