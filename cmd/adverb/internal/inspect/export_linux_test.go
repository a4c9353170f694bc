package inspect

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/promtext"
	"github.com/adverb-rdma/adverb/internal/watch"
)

// exporting runs the exporter, and returns its URL and how to end it.
func exporting(t *testing.T, args ...string) (url string, end func() tooltest.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	t.Cleanup(cancel)
	r := make(chan tooltest.Result, 1)
	read, write := io.Pipe()
	go func() {
		var stderr strings.Builder
		code := tool.RunTo(ctx, write, &stderr, append([]string{"adverb", "stat"}, args...)...)
		write.Close()
		r <- tooltest.Result{Code: code, Stderr: stderr.String()}
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "serves ")
	if !ok {
		cancel()
		t.Fatalf("%q is printed, %v, want the address: %+v", line, err, <-r)
	}
	return url, func() tooltest.Result {
		cancel()
		return <-r
	}
}

func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(body)
}

// The exporter tells the counters of a program that knows nothing of Prometheus. Without a host only this host can
// ask.
func TestExport(t *testing.T) {
	qp := opened(t)
	url, end := exporting(t, "--prometheus", ":0", "-q", ownDevice)
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("serves %s, want it at 127.0.0.1", url)
	}
	r, body := get(t, url)
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != promtext.ContentType {
		t.Errorf("status %d, type %q, want 200 and %q", r.StatusCode, r.Header.Get("Content-Type"), promtext.ContentType)
	}
	for _, want := range []string{
		fmt.Sprintf(`adverb_rdma_writes_total{pid="%d",command="`, os.Getpid()),
		fmt.Sprintf(`device="%s"} 1`+"\n", ownDevice),
		fmt.Sprintf(`device="%s",port="1"} `, ownDevice),
		fmt.Sprintf(`device="%s",qp="%v",type="QPT_RC"} `, ownDevice, qp.QPN()),
		fmt.Sprintf(`device="%s",kind="mr"} 1`+"\n", ownDevice),
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in\n%.3000s", want, body)
		}
	}
	if n := strings.Count(body, "adverb_rdma_writes_total{"); n != 1 {
		t.Errorf("%d devices, want the one that was asked for", n)
	}
	if r, body := get(t, strings.TrimSuffix(url, "metrics")); r.StatusCode != 200 || !strings.Contains(body, "/metrics") {
		t.Errorf("/: status %d, %q, want the way to /metrics", r.StatusCode, body)
	}
	if r, _ := get(t, url+"x"); r.StatusCode != 404 {
		t.Errorf("/metricsx: status %d, want 404", r.StatusCode)
	}
	if got := end(); got.Code != cli.StatusInterrupted || got.Stderr != "" {
		t.Errorf("at the end status %d, %q, want %d and nothing", got.Code, got.Stderr, cli.StatusInterrupted)
	}
	if c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")); err == nil {
		c.Close()
		t.Error("the port is open after the end, want it closed")
	}
}

func TestExportErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--prometheus", "9400"}, cli.ExitUsage, "an address such as :9400"},
		{[]string{"--prometheus", "127.0.0.1:"}, cli.ExitUsage, "an address such as :9400"},
		{[]string{"--prometheus", ":0", "-w"}, cli.ExitUsage, "goes with --qp"},
		{[]string{"--prometheus", ":0", "-v"}, cli.ExitUsage, "goes with --qp"},
		{[]string{"--prometheus", l.Addr().String()}, cli.ExitError, "address already in use"},
	} {
		code, out, stderr := tool.Run(t.Context(), append([]string{"adverb", "stat"}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: status %d, %q, %q, want %d and %q", c.args, code, out, stderr, c.code, c.want)
		}
	}
}

// One request at a time asks the programs, a few wait, and others are told to come later. A request whose client goes
// gives its place up.
func TestExportTurns(t *testing.T) {
	asks, goOn := make(chan struct{}), make(chan struct{})
	h := newExporter(watch.WantStat, "", func(ctx context.Context, w watch.Want) ([]watch.Process, []error, error) {
		asks <- struct{}{}
		<-goOn
		return watch.Ask(ctx, w)
	})
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience/6)
	defer cancel()
	replies := make(chan string)
	scrape := func(ctx context.Context) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/metrics", nil))
		replies <- fmt.Sprint(w.Code, " ", w.Body)
	}
	want := func(what, begins string) {
		t.Helper()
		if got := <-replies; !strings.HasPrefix(got, begins) {
			t.Errorf("%s is answered by %.100q, want %q", what, got, begins)
		}
	}
	go scrape(t.Context())
	<-asks
	for range maxTurns { // one too many: it alone ends
		go scrape(ctx)
	}
	want("a request too many", "503 8 requests are waiting")
	cancel()
	for range maxTurns - 1 {
		want("a request whose client has gone", "503 the exporter ends")
	}
	close(goOn)
	want("the first request", "200 # HELP")
	go scrape(t.Context())
	<-asks
	want("a later request", "200 # HELP")
}
