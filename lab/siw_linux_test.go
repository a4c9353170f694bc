package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// Two kernels speak iWARP to each other, by the device that was built for them.
func TestSiw(t *testing.T) {
	needLab(t)
	recordTest(t, labFamily, resultRow{program: "rping", server: "kernel", ip: "both", mtu: 1500}, "iWARP (siw) between two guests")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	l := ownLab(ctx, t, Config{MTU: 1500, Guests: 2, Device: deviceSiw})
	server, client := l.Guest(0), l.Guest(1)
	for _, v6 := range []bool{false, true} {
		at := cmPort{rdmacm.PortSpaceTCP, nextPort()}
		options := []string{"-v", "-V", "-C", "5", "-S", "65535", "-p", at.port}
		srv := startCM(ctx, t, server, at, cmArgv(server, "rping", append(options, "-s", "-a", anyAddr(v6))...)...)
		cli := start(ctx, t, client, cmArgv(client, "rping", append(options, "-c", "-a", server.Addr(v6).String())...)...)
		left := finish(t, srv, cli)
		wantOutput(t, "the server's stdout", left[0].Stdout, rpingLines("server ping data", 5, 65535))
		wantOutput(t, "the client's stdout", left[1].Stdout, rpingLines("ping data", 5, 65535))
	}
	if _, err := Start(ctx, Config{MTU: 1500, Device: "srq"}); err == nil {
		t.Error("a lab with a device of no such type has started")
	}
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
		t.Errorf("%d files, %v", n, err)
	}
	for _, name := range []string{"y.c", "z.h"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != "linux/a/b/"+name || err != nil {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if n, err := untarDir(bytes.NewReader(whole), "no/such", dir); n != 0 || err != nil {
		t.Errorf("%d files, %v", n, err)
	}
	const inFirst = 4*512 + 3 // in the contents of y.c, after three headers and the contents of x.c
	if _, err := untarDir(bytes.NewReader(whole[:inFirst]), "a/b", t.TempDir()); err == nil {
		t.Error("half a file is taken for a whole one")
	}
}
