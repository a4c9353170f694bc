package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmaio"
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	buckets = 1 << 14
	// keepAlive is after how long a silent client is asked for a sign of life.
	keepAlive = time.Second
	// setupTime is how long a client may take to connect.
	setupTime = 10 * time.Second
	// numberSize is how many bytes the number of a put takes. The number comes before the put and the put's answer.
	numberSize = 8
)

// The purpose of a connection, which a client names in the private data. The session follows readsFor.
var (
	forMessages = []byte("kv rpc")
	readsFor    = []byte("kv read")
)

type server struct {
	mu       sync.Mutex
	table    map[*verbs.PD]*verbs.MR // the same table in the PD of each device
	bytes    []byte
	sessions map[uint64]*session // by a random number, which nobody else can guess
}

// session is a client: a channel for its puts, and a connection through which it reads.
type session struct {
	ch    *rdmamsg.Channel
	reads *rdmacm.Conn
}

func newServer() *server {
	return &server{table: make(map[*verbs.PD]*verbs.MR), bytes: make([]byte, buckets*bucketSize), sessions: make(map[uint64]*session)}
}

func newID() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

// serve accepts clients until ctx ends, and returns when serve has left the clients.
func (s *server) serve(ctx context.Context, l *rdmacm.Listener) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.Close()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		work.Go(func() { s.accept(ctx, r) })
	}
}

func (s *server) accept(ctx context.Context, r *rdmacm.Request) {
	setup, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	var err error
	switch data := r.PrivateData(); {
	case bytes.HasPrefix(data, forMessages):
		var ch *rdmamsg.Channel
		if ch, err = rdmamsg.Accept(setup, r, &rdmamsg.Config{KeepAlive: keepAlive}); err == nil {
			s.session(ctx, ch)
		}
	case bytes.HasPrefix(data, readsFor):
		err = s.acceptReads(setup, r, binary.BigEndian.Uint64(data[len(readsFor):]))
	default:
		err = r.Reject([]byte("this is kv"))
	}
	if err != nil {
		fmt.Printf("client %v failed to connect: %v\n", r.RemoteAddr(), err)
	}
}

// acceptReads gives a session its second connection. Nothing is posted on the second connection: the client's
// READs need no program here.
func (s *server) acceptReads(ctx context.Context, r *rdmacm.Request, id uint64) error {
	conn, err := r.Accept(ctx, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	se := s.sessions[id]
	if se == nil || se.reads != nil {
		go conn.Close()
		return errors.New("no such session")
	}
	se.reads = conn
	return nil
}

// session serves a client until the client is gone.
func (s *server) session(ctx context.Context, ch *rdmamsg.Channel) {
	client := ch.Conn().RemoteAddr()
	fmt.Printf("client arrived: %v\n", client)
	s.mu.Lock()
	id, se := newID(), &session{ch: ch}
	s.sessions[id] = se
	mr, err := s.register(ch.Conn().PD())
	s.mu.Unlock()
	if err == nil {
		err = s.puts(ctx, ch, id, mr)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it has closed the connection")
	}
	fmt.Printf("client gone: %v: %v\n", client, err)
	s.mu.Lock()
	delete(s.sessions, id)
	reads := se.reads
	s.mu.Unlock()
	ch.Close()
	if reads != nil {
		reads.Close()
	}
}

// register makes the table readable through a PD. Connections of a device share theirs.
func (s *server) register(pd *verbs.PD) (*verbs.MR, error) {
	if mr := s.table[pd]; mr != nil {
		return mr, nil
	}
	if len(s.table) > 0 {
		return nil, errors.New("the table is on one device only")
	}
	mr, err := pd.AllocMR(buckets*bucketSize, verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	if err != nil {
		return nil, err
	}
	s.table[pd], s.bytes = mr, mr.Bytes()
	return mr, nil
}

// puts tells the client where the table lies, and then answers its puts.
func (s *server) puts(ctx context.Context, ch *rdmamsg.Channel, id uint64, mr *verbs.MR) error {
	hello, err := rdmaio.SpanOf(mr).AppendBinary(binary.BigEndian.AppendUint64(nil, id))
	if err != nil {
		return err
	}
	if err := ch.Send(ctx, hello); err != nil {
		return err
	}
	for {
		m, err := ch.Recv(ctx)
		if err != nil {
			return err
		}
		request := string(m.Bytes())
		m.Release()
		if len(request) < numberSize {
			return fmt.Errorf("a put of %d bytes is cut short", len(request))
		}
		key, value, _ := strings.Cut(request[numberSize:], "\x00")
		s.mu.Lock()
		err = put(s.bytes, key, value)
		s.mu.Unlock()
		answer := request[:numberSize]
		if err != nil {
			answer += err.Error()
		}
		if err := ch.Send(ctx, []byte(answer)); err != nil {
			return err
		}
	}
}
