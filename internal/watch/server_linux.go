//go:build !adverb_portable

package watch

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/user"
)

// listening is this program's socket while devices are open.
var listening struct {
	mu    sync.Mutex
	users int
	*server
}

// Listen makes this program answer until release is called as often as Listen was. Where the system does not allow
// that, the program works without answers.
func Listen() (release func()) {
	l := &listening
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users++; l.users == 1 {
		l.server, _ = serve(socketName(os.Geteuid(), fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()[:8])), Self)
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.users--; l.users == 0 && l.server != nil {
			l.server.close()
			l.server = nil
		}
	})
}

func socketName(uid int, rest string) string { return fmt.Sprintf("%s%d/%s", socketDir, uid, rest) }

// server answers the clients.
type server struct {
	l    *net.UnixListener
	self func(Want) Process
	busy chan struct{} // a place for each conversation
	all  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.UnixConn]struct{} // nil once the server is closed
}

func serve(name string, self func(Want) Process) (*server, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s := &server{l: l, self: self, busy: make(chan struct{}, conversations), conns: map[*net.UnixConn]struct{}{}}
	s.all.Go(s.accept)
	return s, nil
}

func (s *server) accept() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			if s.closed() {
				return
			}
			// Out of descriptors, say, which comes again at once. Nobody is answered until that is over, and nobody
			// spins: there are few tries in a second. A close waits for one of them at most.
			s.busy <- struct{}{}
			time.AfterFunc(answerTime, func() { <-s.busy })
			continue
		}
		if !entitled(c) { // before it takes a place
			c.Close()
			continue
		}
		select {
		case s.busy <- struct{}{}:
		default:
			c.Close()
			continue
		}
		if !s.keep(c) {
			c.Close()
			return
		}
		s.all.Go(func() {
			defer func() { <-s.busy }()
			defer s.drop(c)
			s.answer(c)
		})
	}
}

func (s *server) closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns == nil
}

func (s *server) keep(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *server) drop(c *net.UnixConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.Close()
}

// entitled reports whether the client is of this program's user, or root, beyond doubt.
func entitled(c *net.UnixConn) bool {
	p, err := user.PeerOfConn(c)
	return err == nil && (p.Check() == nil || user.IsRoot(p.UID))
}

// answer holds one conversation. Whoever asks nothing that is known gets nothing.
func (s *server) answer(c *net.UnixConn) {
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return
	}
	line, err := bufio.NewReader(io.LimitReader(c, maxRequest)).ReadString('\n')
	want := Want(strings.TrimSuffix(line, "\n"))
	if err != nil || !want.valid() {
		return
	}
	b, err := json.Marshal(s.self(want))
	if err != nil {
		return
	}
	_, _ = c.Write(b) // a client that hung up does not want the answer
}

// close ends all conversations and returns when they have ended.
func (s *server) close() {
	s.mu.Lock()
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	s.l.Close()
	for c := range conns {
		c.Close()
	}
	s.all.Wait()
}
