//go:build !linux

package tooltest

import "testing"

// Exclusive skips the test: outside Linux processes cannot share an address.
func Exclusive(t *testing.T, _ string) {
	t.Helper()
	t.Skip("only on Linux do processes share an address")
}
