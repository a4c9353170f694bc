package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/promtext"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// Limits of the exporter that this implementation chose.
const (
	readTime  = 5 * time.Second  // for a request
	writeTime = 40 * time.Second // for its turn, the programs' answers and the reply
	idleTime  = time.Minute      // of a connection between two requests
	endTime   = 2 * time.Second  // for replies under way when the tool ends
	maxHeader = 16 << 10         // bytes
	maxTurns  = 8                // requests at a time: one asks the programs, and the others wait
)

// export serves the counters to Prometheus until the user ends it.
func export(inv *cli.Invocation, address string, want watch.Want, dev string) int {
	inv.Endless = true
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		inv.Errorf("%s: --prometheus=%s: an address such as :9400 or 192.0.2.1:9400 is needed\n", inv.Prog, watch.Clean(address))
		return cli.ExitUsage
	}
	if host == "" {
		host = "127.0.0.1"
	}
	// Where programs cannot be asked at all, who starts the tool is told, rather than who reads the graphs.
	if _, _, err := watch.Ask(inv.Ctx, want); err != nil {
		return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
	}
	var lc net.ListenConfig
	l, err := lc.Listen(inv.Ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
	}
	inv.Printf("serves http://%s/metrics\n", l.Addr())
	err = serve(inv.Ctx, l, newExporter(want, dev, watch.Ask))
	return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
}

// serve serves until ctx ends. Replies that are under way then have a moment to end.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }, // programs are asked no longer than the tool runs
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if err := s.Shutdown(last); err != nil {
		s.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// exporter answers the requests of Prometheus.
type exporter struct {
	want watch.Want
	dev  string // "" for all
	ask  func(context.Context, watch.Want) ([]watch.Process, []error, error)

	waiting chan struct{} // holds one for each request
	turn    chan struct{} // holds one while programs are asked: each takes few questions at a time
}

func newExporter(want watch.Want, dev string, ask func(context.Context, watch.Want) ([]watch.Process, []error, error)) http.Handler {
	e := &exporter{want: want, dev: dev, ask: ask, waiting: make(chan struct{}, maxTurns), turn: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "The counters of programs on adverb are at /metrics.\n")
	})
	return mux
}

func (e *exporter) metrics(w http.ResponseWriter, r *http.Request) {
	select {
	case e.waiting <- struct{}{}:
		defer func() { <-e.waiting }()
	default:
		http.Error(w, fmt.Sprintf("%d requests are waiting already: ask less often", maxTurns), http.StatusServiceUnavailable)
		return
	}
	select {
	case e.turn <- struct{}{}:
	case <-r.Context().Done():
		http.Error(w, "the exporter ends", http.StatusServiceUnavailable)
		return
	}
	all, silent, err := e.ask(r.Context(), e.want)
	<-e.turn
	if err != nil {
		http.Error(w, watch.CleanText(err.Error()), http.StatusInternalServerError)
		return
	}
	var text bytes.Buffer
	if err := promtext.Write(&text, pick(all, e.dev), len(silent)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", promtext.ContentType)
	w.Write(text.Bytes()) // an error is that the one who asked has gone
}
