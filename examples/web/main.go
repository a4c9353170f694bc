// Command web is HTTP over RDMA: a server, a client and a reverse proxy from TCP, of net/http and crypto/tls
// unchanged, on the connections of package rsocket.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft" // software devices
	"github.com/adverb-rdma/adverb/rsocket"
)

const usage = `usage:
  web serve [-addr ADDR]               serve /echo and /bytes/N by RDMA
  web get URL                          get a page by RDMA
  web proxy [-addr ADDR] URL           pass requests that come by TCP on, by RDMA
`

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal(usage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flags := flag.NewFlagSet("web "+os.Args[1], flag.ExitOnError)
	addr := flags.String("addr", "", "address to listen on (default 127.0.0.1:7480, and 127.0.0.1:7481 for the proxy)")
	flags.Parse(os.Args[2:])
	var err error
	switch os.Args[1] {
	case "serve":
		err = serveRDMA(ctx, or(*addr, "127.0.0.1:7480"))
	case "get":
		err = get(ctx, flags.Arg(0), os.Stdout)
	case "proxy":
		err = proxy(ctx, or(*addr, "127.0.0.1:7481"), flags.Arg(0))
	default:
		log.Fatal(usage)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// handler answers with the data that the client has sent, and with as many bytes as the client asks for.
func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex() // HTTP/1.1 does not read and write at once by itself
		io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "not a number of bytes", http.StatusBadRequest)
			return
		}
		io.CopyN(w, zeros{}, n)
	})
	return mux
}

// zeros is an endless row of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// How long a client may take to send a request's header, and to send the next request. Bodies may take as long as they do.
const headerTime, idleTime = 10 * time.Second, 2 * time.Minute

// newServer is an HTTP server. TLS is for listeners of ServeTLS; TLS brings HTTP/2.
func newServer(h http.Handler, c *tls.Config) *http.Server {
	return &http.Server{Handler: h, TLSConfig: c, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime}
}

// newTransport is an HTTP transport by RDMA.
func newTransport(c *tls.Config) *http.Transport {
	return &http.Transport{DialContext: rsocket.DialContext, TLSClientConfig: c, ForceAttemptHTTP2: true}
}

func serveRDMA(ctx context.Context, addr string) error {
	l, err := rsocket.Listen("rsocket", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving by RDMA on %v\n", l.Addr())
	return serve(ctx, newServer(handler(), nil), l)
}

// serve serves until ctx ends.
func serve(ctx context.Context, s *http.Server, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(ctx context.Context, url string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	t := newTransport(nil)
	defer t.CloseIdleConnections()
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

// proxyHandler passes requests on by t.
func proxyHandler(t http.RoundTripper, target *url.URL) http.Handler {
	p := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: t,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A target may answer before the target has read the whole request. By HTTP/1.1 the server would then throw
		// the rest of the request away.
		http.NewResponseController(w).EnableFullDuplex()
		p.ServeHTTP(w, r)
	})
}

func proxy(ctx context.Context, addr, to string) error {
	target, err := url.Parse(to)
	if err != nil {
		return err
	}
	if target.Host == "" {
		return fmt.Errorf("%q is no URL to pass requests on to: give one such as http://127.0.0.1:7480", to)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	t := newTransport(nil) // by RDMA
	defer t.CloseIdleConnections()
	fmt.Printf("passing on from TCP %v\n", l.Addr())
	return serve(ctx, newServer(proxyHandler(t, target), nil), l)
}
