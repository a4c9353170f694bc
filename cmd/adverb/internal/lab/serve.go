package lab

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"
)

// file is a file of the page.
type file struct {
	kind string // Content-Type
	data []byte
}

// Limits of the server, whose clients are browsers of this machine.
const (
	headerTimeout = 10 * time.Second
	writeTimeout  = 5 * time.Minute
	idleTimeout   = time.Minute
	headerBytes   = 16 << 10
	endTimeout    = 2 * time.Second
)

// serve serves the files until ctx ends.
func serve(ctx context.Context, l net.Listener, site map[string]file) error {
	s := &http.Server{
		Handler: handler(l.Addr(), site), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
	}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if s.Shutdown(end) != nil {
		s.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// handler serves the files to pages that were asked for by this address. A foreign page whose name was made to stand for
// 127.0.0.1 (DNS rebinding) names another host, and gets nothing.
func handler(addr net.Addr, site map[string]file) http.Handler {
	_, port, _ := net.SplitHostPort(addr.String())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, p, err := net.SplitHostPort(r.Host)
		if err != nil || p != port || host != "127.0.0.1" && host != "localhost" {
			http.Error(w, "this server answers to http://"+addr.String()+"/ alone", http.StatusMisdirectedRequest)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the files can be read alone", http.StatusMethodNotAllowed)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" {
			name = "index.html"
		}
		f, ok := site[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", f.kind)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // another version may serve at the same address
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.data))
	})
}
