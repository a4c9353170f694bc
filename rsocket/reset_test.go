package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
)

// Bytes that were written before Close arrive, though the connection is reset since bytes are unread: all of them, and
// then the reset. They do on a network that loses packets, too.
func TestResetAfterAll(t *testing.T) {
	for _, network := range []rdmatest.Config{{}, {Loss: 0.02, Duplicate: 0.02, Reorder: 0.02}} {
		x, y := newPair(t, rsocket.Config{SendBuffer: 256 << 10, RecvBuffer: 256 << 10}, network)
		want := noise(200<<10, 9)
		if _, err := x.Write([]byte("unread")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(y, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := y.Write(want); err != nil {
			t.Fatal(err)
		}
		if err := y.Close(); err != nil {
			t.Error(err)
		}
		got, err := io.ReadAll(x)
		if !bytes.Equal(got, want) || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %d bytes, %v; want the %d that were written, and then %v", len(got), err, len(want), syscall.ECONNRESET)
		}
		if n, err := x.Write([]byte("a")); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a write then: got %d, %v, want %v", n, err, syscall.ECONNRESET)
		}
	}
}
