// Package bare tests package rdmacm in a program that imports no provider.
package bare

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// TestNoProvider: the error of a program that has no device tells it to import a provider.
func TestNoProvider(t *testing.T) {
	if _, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0")); err == nil || !strings.Contains(err.Error(), "provider") {
		t.Errorf("listening without any provider: got error %v, want one that tells to import a provider", err)
	}
}
