package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/adverb-rdma/adverb/examples/internal/killtest"
	"github.com/adverb-rdma/adverb/examples/internal/streamtest"
	"github.com/adverb-rdma/adverb/rdmatest"
)

func TestMain(m *testing.M) { killtest.Main(m, main) }

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// start serves in the process on a network of rdmatest, and returns a client there.
func start(t *testing.T, faults rdmatest.Config) client {
	t.Helper()
	l, dialer := streamtest.Listen(t, faults, 7482)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, l) }()
	conn, err := dialBy(dialer.DialContext, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return client{conn}
}

// Calls of all kinds at a time, over one connection.
func exercise(t *testing.T, c client, size int) {
	want := noise(size)
	hash := fmt.Sprintf("%x", sha256.Sum256(want))
	var work sync.WaitGroup
	defer work.Wait()
	for range 3 {
		work.Go(func() {
			for i := range 50 {
				s := fmt.Sprint("text ", i)
				if got, err := c.upper(t.Context(), s); err != nil || got != strings.ToUpper(s) {
					t.Errorf("%q became %q, %v, want %q", s, got, err, strings.ToUpper(s))
					return
				}
			}
		})
		work.Go(func() {
			s, err := c.zeros(t.Context(), int64(size))
			if err != nil {
				t.Error(err)
				return
			}
			got := 0
			for {
				b, err := s.Recv()
				if err == io.EOF && got == size {
					return
				}
				if err != nil {
					t.Errorf("after %d bytes of %d: %v", got, size, err)
					return
				}
				got += len(b.Value)
			}
		})
		work.Go(func() {
			s, err := c.sum(t.Context())
			if err == nil {
				err = pieces(bytes.NewReader(want), s.Send)
			}
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := s.CloseAndRecv(); err != nil || got.Value != hash {
				t.Errorf("SHA-256 %v, %v; want %s", got, err, hash)
			}
		})
		work.Go(func() {
			var got bytes.Buffer
			if err := echoAll(t.Context(), c, bytes.NewReader(want), &got); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%d bytes of %d came back, %v, want all, as they were sent", got.Len(), len(want), err)
			}
		})
	}
}

func TestCalls(t *testing.T) {
	exercise(t, start(t, rdmatest.Config{}), 2<<20)
}

// A network that loses a packet in a hundred changes nothing but the time.
func TestLoss(t *testing.T) {
	exercise(t, start(t, rdmatest.Config{Loss: 0.01, Seed: 5}), 1<<20)
}

// The answers of the server, and the end of a client, come to the other end as over TCP.
func TestErrors(t *testing.T) {
	c := start(t, rdmatest.Config{})
	s, err := c.zeros(t.Context(), -1)
	if err == nil {
		_, err = s.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a number of bytes below 0: %v, want %v", err, codes.InvalidArgument)
	}
	ctx, cancel := context.WithCancel(t.Context())
	e, err := c.echo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := e.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("after the context's end: %v, want %v", err, codes.Canceled)
	}
	if err := echoAll(t.Context(), c, io.MultiReader(strings.NewReader("text"), failing{}), io.Discard); !errors.Is(err, errNoMore) {
		t.Errorf("a source that fails: %v, want its error: %v", err, errNoMore)
	}
}

type failing struct{}

var errNoMore = errors.New("no more")

func (failing) Read([]byte) (int, error) { return 0, errNoMore }

// The commands of README, as processes.
func TestProcesses(t *testing.T) {
	server := killtest.Start(t, "serve", "-addr", "127.0.0.1:0")
	addr := server.MustLine(0, killtest.Listening)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, noise(3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"upper", "-addr", addr, "some text"}, "SOME TEXT"},
		{[]string{"zeros", "-addr", addr, "5000000"}, "5000000 bytes in "},
		{[]string{"sum", "-addr", addr, file}, fmt.Sprintf("%x", sha256.Sum256(noise(3<<20)))},
	} {
		if out, err := killtest.Start(t, tt.args...).Wait(); err != nil || !strings.HasPrefix(out, tt.want) {
			t.Errorf("%q: %v, %s, want %q…", tt.args, err, out, tt.want)
		}
	}
	server.Kill()
	if out, err := killtest.Start(t, "upper", "-addr", addr, "x").Wait(); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("without a server: %v, %s, want it refused", err, out)
	}
}
