package verbs_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// logged collects records.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
}

// records returns the records of a message, and forgets all.
func (l *logged) records(t *testing.T, msg string) (list []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r["msg"] == msg {
			list = append(list, r)
		}
	}
	l.b.Reset()
	return list
}

// A refused request is logged with its cause at the end that refuses it, and the failure at the other.
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		var atA, atB logged
		check(t, a.SetLogger(atA.logger(slog.LevelDebug)))
		check(t, b.SetLogger(atB.logger(slog.LevelInfo)))
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(64), y.MR(64)
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: verbs.RemoteAddr{VA: dst.Addr() + 60, RKey: dst.RKey()}})
		x.Next()
		synctest.Wait()
		got := atB.records(t, "asynchronous event")
		if len(got) != 1 || got[0]["event"] != "EVENT_QP_ACCESS_ERR" || got[0]["level"] != "WARN" || got[0]["device"] != "sim1" ||
			got[0]["qp"] != y.QP.QPN().String() || !strings.Contains(got[0]["cause"].(string), "outside the memory region") {
			t.Errorf("the responder logged %v, want the event with its cause", got)
		}
		failed := atA.records(t, "QP failed")
		if len(failed) != 1 || !strings.Contains(failed[0]["cause"].(string), "WC_REM_ACCESS_ERR") || failed[0]["qp"] != x.QP.QPN().String() {
			t.Errorf("the requester logged %v, want the failure with its cause", failed)
		}
		check(t, b.SetLogger(nil))
		rdmatest.Connect(t, a, b)
		synctest.Wait()
		if states := atA.records(t, "QP changed its state"); len(states) != 3 || states[2]["to"] != "QPS_RTS" || states[2]["level"] != "DEBUG" {
			t.Errorf("the requester logged %v, want three states", states)
		}
		if atB.b.Len() != 0 {
			t.Errorf("after SetLogger(nil) there is %q, want nothing", atB.b.String())
		}
	})
}

// A flood of bad packets does not flood the log, and the records that are left out are counted.
func TestLoggerFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Seed: 3})
		a, b := net.Device(), net.Device()
		var log logged
		check(t, b.SetLogger(log.logger(slog.LevelInfo)))
		x, _ := rdmatest.Datagrams(t, a, b)
		src := x.MR(64)
		flood := func(n int) {
			for range n {
				x.Send(x.To(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}}))
				x.Done()
			}
			synctest.Wait()
		}
		net.SetFaults(rdmatest.Config{Corrupt: 1})
		flood(1000)
		// A flipped bit may be that of the QPN, so the causes are several kinds.
		got := log.records(t, "packet dropped")
		if len(got) < 10 || len(got) > 60 || got[0]["cause"] == "" || !strings.HasPrefix(got[0]["from"].(string), "10.0.0.1:") {
			t.Errorf("%d records of 1000 packets, the first %v; want ten of each cause", len(got), got[0])
		}
		time.Sleep(time.Second)
		flood(1000)
		omitted := 0.0
		for _, r := range log.records(t, "packet dropped") {
			n, _ := r["omitted"].(float64)
			omitted += n
		}
		if omitted < 900 {
			t.Errorf("%v records are counted as omitted, want nearly all of the first 1000", omitted)
		}
	})
}

// A device that does not log says so.
func TestLoggerUnsupported(t *testing.T) {
	d := (&foreign{}).open(t)
	wantErr(t, "set logger", d.SetLogger(slog.Default()), verbs.ErrUnsupported, "does not log")
}
