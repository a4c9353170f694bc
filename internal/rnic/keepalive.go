package rnic

import (
	"log/slog"
	"net"
	"time"

	"github.com/adverb-rdma/adverb/internal/devlog"
)

// After the idle time TCP sends keepAliveCount probes, one each keepAliveInterval. TCP's clock
// has whole seconds. The probes take longer than the retries of RoCE, since some seconds are little
// for a TCP.
const (
	keepAliveInterval = time.Second
	keepAliveCount    = 5
)

// idleTime is the period after which TCP is to send a keep-alive probe. Until a period was set, package net's counts.
type idleTime struct {
	period time.Duration // 0 is never
	set    bool
}

// keepAliveConn is a connection whose keep-alive can be set.
type keepAliveConn interface {
	SetKeepAliveConfig(net.KeepAliveConfig) error
}

// keepAliveConnOf returns the socket, if the socket has the connection's descriptor. Otherwise it unwraps c until it finds
// the TCP connection, or returns nil.
func keepAliveConnOf(s socket, c net.Conn) keepAliveConn {
	if k, ok := s.(keepAliveConn); ok {
		return k
	}
	for {
		switch t := c.(type) {
		case keepAliveConn:
			return t
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
}

// SetKeepAlive implements verbs.ProviderKeepAlive.
func (q *qp) SetKeepAlive(period time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = idleTime{period, true}
	if q.s == nil {
		return nil // until the QP has a connection
	}
	return q.s.keepAlive()
}

// keepAlive sets the options of the TCP connection from the QP's idleTime. The caller holds the QP's lock.
func (s *stream) keepAlive() error {
	want := s.q.idle
	if s.keepAliveConn == nil || !want.set {
		return nil
	}
	err := s.keepAliveConn.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: want.period > 0, Idle: want.period, Interval: keepAliveInterval, Count: keepAliveCount,
	})
	if err != nil {
		return err
	}
	return setUserTimeout(s.keepAliveConn, want.userTimeout())
}

// userTimeout returns the time after which a peer that neither answers a keep-alive probe nor acknowledges data has
// vanished. 0 leaves the time to the system, which waits for the acknowledgement of data for a quarter of an hour.
func (t idleTime) userTimeout() time.Duration {
	if t.period <= 0 {
		return 0
	}
	const unit = time.Second // TCP's clock rounds the period up to whole ones
	return (t.period+unit-1)/unit*unit + keepAliveCount*keepAliveInterval
}

// beginKeepAlive is keepAlive for a connection that is there anyway, whatever the system says.
func (s *stream) beginKeepAlive() {
	if err := s.keepAlive(); err != nil {
		s.q.dev.Log.Add(slog.LevelWarn, "keep-alive", "no keep-alive", devlog.QP(s.q.QPN()), devlog.Cause(err))
	}
}
