//go:build !linux

package tooltest

import (
	"context"
	"testing"
)

// Exclusive skips the test: outside Linux processes cannot share an address.
func Exclusive(t *testing.T, _ string) {
	t.Helper()
	t.Skip("only on Linux do processes share an address")
}

// AwaitListening is for tests that Exclusive has let pass.
func (s *Started) AwaitListening(context.Context, *testing.T, string) {}
