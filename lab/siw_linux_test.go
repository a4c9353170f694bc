package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// Two kernels speak iWARP to each other, with the device that was built for them.
func TestSiw(t *testing.T) {
	needLab(t)
	recordTest(t, labFamily, resultRow{program: "rping", server: "kernel", ip: "both", mtu: 1500}, "iWARP (siw) between two guests")
	ctx := within(t, bootPatience+2*patience)
	if _, err := Start(ctx, Config{MTU: 1500, Device: "srq"}); err == nil {
		t.Error("a lab has started with guests whose device is of no known type")
	}
	l, err := Start(ctx, Config{MTU: 1500, Guests: 2, Device: deviceSiw})
	if err != nil {
		notShown(t, err)
	}
	closeAtEnd(t, l)
	for _, v6 := range []bool{false, true} {
		if err := rpingSiw(ctx, l.Guest(0), l.Guest(1), v6); err != nil {
			notShown(t, err)
		}
	}
}

// rpingSiw has rping move data between two guests. Its error is a fault of the kernels or of rping.
//
// The siw of Linux 6.1 overlooks data that arrives early. Its function siw_accept sends the MPA
// reply first, and then installs the callback for incoming data. It does not look for data that has
// arrived in between. Rping's client sends its first message as soon as it has the reply. If the
// message arrives in that time, it stays unread in the server's socket, and both ends wait for
// ever, as with 4 of 33 connections in a trial. So rpingSiw drops the MPA reply until the server
// says that the connection is established. TCP then sends the reply again.
func rpingSiw(ctx context.Context, server, client *Guest, v6 bool) error {
	const rounds, size = 5, 65535
	at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
	options := []string{"-v", "-V", "-C", strconv.Itoa(rounds), "-S", strconv.Itoa(size), "-p", at.port}
	pass, err := loseSegments(ctx, server, at.port)
	if err != nil {
		return err
	}
	// With -d, rping prints events too. In guests, one listener serves both IP versions.
	srv, err := beginCM(ctx, server, at, false, cmArgv(server, "rping", append(options, "-d", "-s", "-a", anyAddr(v6))...)...)
	if err != nil {
		return err
	}
	cli, err := client.Start(ctx, cmArgv(client, "rping", append(options, "-c", "-a", server.Addr(v6).String())...)...)
	if err != nil {
		return err
	}
	clientLives, cancel := untilEnd(ctx, cli)
	defer cancel()
	if err := srv.AwaitOutput(clientLives, "RDMA_CM_EVENT_ESTABLISHED"); err != nil {
		return fmt.Errorf("%w\n%s%s", err, srv.Report(), cli.Report())
	}
	if err := pass(); err != nil {
		return err
	}
	left, err := ends(srv, cli)
	if err != nil {
		return err
	}
	var served strings.Builder
	for line := range strings.Lines(left[0].Stdout) {
		if strings.HasPrefix(line, "server ping data: ") {
			served.WriteString(line)
		}
	}
	for _, out := range []struct{ of, got, want string }{
		{"server", served.String(), rpingLines("server ping data", rounds, size)},
		{"client", left[1].Stdout, rpingLines("ping data", rounds, size)},
	} {
		if out.got != out.want {
			return fmt.Errorf("rping's %s prints %.300q (%d bytes), want %.300q (%d bytes)", out.of, out.got, len(out.got), out.want, len(out.want))
		}
	}
	return nil
}

// loseSegments drops the TCP segments with data that a guest sends from a port, until pass is called.
func loseSegments(ctx context.Context, g *Guest, port string) (pass func() error, err error) {
	// The flag PSH is in the byte at offset 13 of the TCP header. Segments that open or close the
	// connection do not have it.
	const lose = `cd /usr/lib/modules/*/kernel/net/sched &&
		for m in sch_ingress cls_u32 act_gact; do lsmod | grep -q "^$m " || insmod $m.ko || exit; done
		tc qdisc add dev eth0 clsact &&
		tc filter add dev eth0 egress protocol ip prio 1 u32 match ip sport "$1" 0xffff match u8 8 8 at 33 action drop &&
		tc filter add dev eth0 egress protocol ipv6 prio 2 u32 match ip6 sport "$1" 0xffff match u8 8 8 at 53 action drop`
	_, err = g.Run(ctx, "bash", "-c", lose, "lose", port) // busybox sh would take its own tc
	return func() error {
		_, err := g.Run(ctx, "tc", "qdisc", "del", "dev", "eth0", "clsact")
		return err
	}, err
}

func TestUntarDir(t *testing.T) {
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for _, name := range []string{"linux/a/x.c", "linux/a/b/", "linux/a/b/y.c", "linux/a/b/z.h", "linux/c/w.c"} {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(name)), Typeflag: tar.TypeReg}
		if name[len(name)-1] == '/' {
			h.Size, h.Typeflag = 0, tar.TypeDir
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := tw.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	whole := archive.Bytes()
	dir := t.TempDir()
	if n, err := untarDir(bytes.NewReader(whole), "a/b", dir); n != 2 || err != nil {
		t.Errorf("got %d files, %v; want 2", n, err)
	}
	for _, name := range []string{"y.c", "z.h"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != "linux/a/b/"+name || err != nil {
			t.Errorf("%s: got %q, %v; want its name in the archive", name, b, err)
		}
	}
	if n, err := untarDir(bytes.NewReader(whole), "no/such", dir); n != 0 || err != nil {
		t.Errorf("no such directory: got %d files, %v; want none", n, err)
	}
	const inFirst = 4*512 + 3 // in the contents of y.c, after three headers and the contents of x.c
	if _, err := untarDir(bytes.NewReader(whole[:inFirst]), "a/b", t.TempDir()); err == nil {
		t.Error("an archive that ends within a file: got no error, want one")
	}
}
