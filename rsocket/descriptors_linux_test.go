//go:build !adverb_portable

package rsocket_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/rsocket"
)

// envServer is the address that a process of clients connects to.
const envServer = "ADVERB_TEST_SERVER"

// shards has a process's devices have four shards, as on a machine of four processors.
func shards(_ *testing.T, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "GOMAXPROCS=4") }

// TestFewDescriptors: a server that may have 256 descriptors has several peer processes, with several connections each, and
// can still start a program. Lanes of shared memory, and memory that others can map, leave it some.
func TestFewDescriptors(t *testing.T) {
	const peers, each = 5, 16
	if to := os.Getenv(envServer); to != "" {
		for range each {
			c, err := rsocket.Dial("rsocket", to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		os.Stdout.WriteString("connected\n")
		io.Copy(io.Discard, os.Stdin) // until the server has looked
		return
	}
	if !usertest.In(t, shards, usertest.Ulimit("-n", 256)) {
		return
	}
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func(c net.Conn) {
				defer c.Close()
				io.Copy(c, c)
			}(c)
		}
	}()
	for i := range peers {
		in, out, wait := startClient(t, "TestFewDescriptors", l.Addr())
		defer wait()
		defer in.Close()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.Contains(line, "connected") {
			t.Fatalf("peer %d: %q, %v; want it connected", i, line, err)
		}
	}
	if err := exec.Command("true").Run(); err != nil {
		t.Errorf("with %d peers: %v, want a program to start", peers, err)
	}
}
