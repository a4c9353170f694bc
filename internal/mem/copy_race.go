//go:build race && (!amd64 || adverb_portable)

package mem

const raceEnabled = true
