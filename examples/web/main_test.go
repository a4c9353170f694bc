package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// The test binary is the program if the test binary is called as such.
func TestMain(m *testing.M) {
	if os.Getenv("BE_WEB") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func listenRDMA(t *testing.T) net.Listener {
	t.Helper()
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// echo posts 3 MiB and compares the data that comes back.
func echo(t *testing.T, client *http.Client, base string, major int) {
	t.Helper()
	want := noise(3 << 20)
	resp, err := client.Post(base+"/echo", "application/octet-stream", bytes.NewReader(want))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, want) || resp.ProtoMajor != major {
		t.Errorf("%s: %d bytes of %d by %s, %v, want HTTP/%d", base, len(got), len(want), resp.Proto, err, major)
	}
}

func TestHTTP1(t *testing.T) {
	l := listenRDMA(t)
	s := newServer(handler(), nil)
	go s.Serve(l)
	defer s.Close()
	transport := newTransport(nil)
	defer transport.CloseIdleConnections()
	for range 3 { // the connection is used again
		echo(t, &http.Client{Transport: transport}, "http://"+l.Addr().String(), 1)
	}
}

// TLS, and by TLS HTTP/2, with many requests on one connection.
func TestHTTP2(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.EnableHTTP2 = true
	cert.StartTLS() // for its certificate
	defer cert.Close()
	pool := x509.NewCertPool()
	pool.AddCert(cert.Certificate())

	l := listenRDMA(t)
	s := newServer(handler(), &tls.Config{Certificates: cert.TLS.Certificates})
	go s.ServeTLS(l, "", "")
	defer s.Close()
	transport := newTransport(&tls.Config{RootCAs: pool, ServerName: "example.com"})
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	done := make(chan struct{})
	const requests = 5
	for range requests {
		go func() {
			defer func() { done <- struct{}{} }()
			echo(t, client, "https://"+l.Addr().String(), 2)
		}()
	}
	for range requests {
		<-done
	}
}

// A network that loses a packet in a hundred changes nothing but the time.
func TestLoss(t *testing.T) {
	network := rdmatest.New(t, rdmatest.Config{Loss: 0.01, Seed: 7})
	from, to := network.Device(), network.Device()
	gid, err := to.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	lc := rsocket.ListenConfig{Devices: []*verbs.Device{to}}
	l, err := lc.Listen(t.Context(), "rsocket", fmt.Sprintf("[%v]:7480", gid.GID.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(handler(), nil)
	go s.Serve(l)
	defer s.Close()
	transport := newTransport(nil)
	transport.DialContext = (&rsocket.Dialer{Devices: []*verbs.Device{from}}).DialContext
	defer transport.CloseIdleConnections()
	var work sync.WaitGroup
	defer work.Wait()
	for range 3 {
		work.Go(func() { echo(t, &http.Client{Transport: transport}, "http://"+l.Addr().String(), 1) })
	}
}

// A client that knows TCP alone reaches the server by the reverse proxy.
func TestReverseProxy(t *testing.T) {
	l := listenRDMA(t)
	s := newServer(handler(), nil)
	go s.Serve(l)
	defer s.Close()
	transport := newTransport(nil)
	front := httptest.NewServer(proxyHandler(transport, &url.URL{Scheme: "http", Host: l.Addr().String()}))
	defer front.Close()
	defer transport.CloseIdleConnections()
	echo(t, front.Client(), front.URL, 1)
}

// The commands of README, as processes.
func TestProcesses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0], args...)
		cmd.Env = append(os.Environ(), "BE_WEB=1")
		cmd.Stderr = os.Stderr
		return cmd
	}
	server := run("serve", "-addr", "127.0.0.1:0")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer cancel()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line[strings.LastIndex(line, " ")+1:])
	body, err := run("get", fmt.Sprintf("http://%s/bytes/%d", addr, 1<<20)).Output()
	if err != nil || len(body) != 1<<20 {
		t.Errorf("%d bytes came, %v, want %d", len(body), err, 1<<20)
	}
}
