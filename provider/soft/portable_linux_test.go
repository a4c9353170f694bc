//go:build !adverb_portable

package soft_test

// portable says that links are those of package net, as on systems other than Linux: without multicast, and with one
// Open for each address.
const portable = false
