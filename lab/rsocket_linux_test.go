package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// rstream and riostream send transfers by turns, and compare the data.

func TestRstream(t *testing.T) {
	needLab(t)
	for _, program := range []string{"rstream", "riostream"} {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				for _, size := range []int{64, 65536, 1000000} {
					s := scenario{family: "Rsockets", program: program, server: server, v6: v6, mtu: mtus[0], variant: strconv.Itoa(size)}
					s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRstream(ctx, t, l, s, size) })
				}
			}
		}
	}
}

func runRstream(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	t.Helper()
	server, client := s.sides(l)
	moveStreams(ctx, t, &s, server, client, size)
}

// moveStreams runs both ends of rstream or riostream. The programs say in words what they find wrong, and by their status
// not always.
func moveStreams(ctx context.Context, t *testing.T, s *scenario, server, client Side, size int) {
	t.Helper()
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	args := []string{"-T", "b", "-T", "v", "-p", at.port, "-S", strconv.Itoa(size), "-C", "5", "-I", "3"}
	srv := s.startCM(ctx, t, server, at, cmArgv(server, s.program, append(args, "-b", server.Addr(s.v6).String())...)...)
	cli := start(ctx, t, client, cmArgv(client, s.program, append(args, "-s", server.Addr(s.v6).String())...)...)
	for i, r := range finish(t, srv, cli) {
		if !strings.Contains(r.Stdout, "\ncustom ") || strings.Contains(r.Stdout, "failed") || r.Stderr != "" {
			t.Errorf("the %s of %s prints %q and %q, want its table", [...]string{"server", "client"}[i], s.program, r.Stdout, r.Stderr)
		}
	}
}

// Files are copied both ways, and compared.
func TestRcopy(t *testing.T) {
	needLab(t)
	for _, server := range []string{"kernel", "adverb"} {
		for _, size := range []int{1, 100_000, 5_000_000} {
			s := scenario{family: "Rsockets", program: "rcopy", server: server, mtu: mtus[0], variant: strconv.Itoa(size)}
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRcopy(ctx, t, l, s, size) })
		}
	}
}

func runRcopy(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	port := nextPort()
	at := cmPort{rdmacm.PortSpaceTCP, port}
	guest, host := l.Guest(0), s.ours(l)
	dir, remote := t.TempDir(), "/run/rcopied-"+port
	local := filepath.Join(dir, "file")
	if s.server == "kernel" {
		data := make([]byte, size)
		r := rand.New(rand.NewPCG(uint64(size), 0))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if err := os.WriteFile(local, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s.startCM(ctx, t, guest, at, "rcopy", "-p", port)
		finish(t, start(ctx, t, host, "adverb", "rcopy", "-p", port, local, guest.Addr(false).String()+":"+remote))
	} else {
		if _, err := guest.Run(ctx, "sh", "-c", `head -c 1000003 /dev/urandom > "$2.part"; while cat "$2.part"; do :; done | head -c "$1" > "$2"; rm "$2.part"; test "$(stat -c %s "$2")" = "$1"`, "make", strconv.Itoa(size), remote); err != nil {
			t.Fatal(err)
		}
		s.startCM(ctx, t, host, at, "adverb", "rcopy", "-p", port, "--into", dir)
		finish(t, start(ctx, t, guest, "rcopy", remote, host.Addr(false).String()+":/file", "-p", port))
	}
	data, err := os.ReadFile(local)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	// The guest's files are in its memory, which holds one of the long ones.
	out, err := guest.Run(ctx, "sh", "-c", `sha256sum "$1" && rm "$1"`, "sum", remote)
	if err != nil || len(data) != size || !bytes.HasPrefix([]byte(out), []byte(hex.EncodeToString(sum[:]))) {
		t.Errorf("%d bytes of %d, SHA-256 %x here, and there %s, %v", len(data), size, sum, out, err)
	}
}
