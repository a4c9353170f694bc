package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/examples/internal/node"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmaio"
	"github.com/adverb-rdma/adverb/rdmamsg"
)

// client is a connection to the server. It serves one goroutine at a time.
type client struct {
	rpc     *rdmamsg.Channel
	puts    uint64 // that were sent; answers have their numbers
	reads   *rdmacm.Conn
	r       *rdmaio.Requester
	table   *rdmaio.Region
	buckets uint64
	bucket  [bucketSize]byte // the bucket that was read
}

func dial(ctx context.Context, addr, local string) (*client, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	d, err := node.Dialer(local)
	if err != nil {
		return nil, err
	}
	c := &client{}
	if c.rpc, err = rdmamsg.Dial(ctx, at, &rdmamsg.Config{Dialer: d, PrivateData: forMessages, KeepAlive: keepAlive}); err != nil {
		return nil, err
	}
	if err := c.setup(ctx, at, d); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// setup learns where the table lies, and connects for the READs.
func (c *client) setup(ctx context.Context, at netip.AddrPort, d *rdmacm.Dialer) error {
	m, err := c.rpc.Recv(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	hello := m.Bytes()
	if len(hello) != 8+rdmaio.SpanSize {
		return errors.New("the server is no kv server")
	}
	var span rdmaio.Span
	if err := span.UnmarshalBinary(hello[8:]); err != nil {
		return err
	}
	if c.buckets = uint64(span.Len / bucketSize); c.buckets == 0 {
		return errors.New("the server's table is empty")
	}
	session := append([]byte(nil), readsFor...)
	if c.reads, err = d.Dial(ctx, at, &rdmacm.Config{PrivateData: append(session, hello[:8]...)}); err != nil {
		return err
	}
	if c.r, err = rdmaio.NewRequester(c.reads.QP(), nil); err != nil {
		return err
	}
	c.table = c.r.Region(span)
	return nil
}

func (c *client) close() {
	c.rpc.Close()
	if c.r != nil {
		c.r.Close()
	}
	if c.reads != nil {
		c.reads.Close()
	}
}

// put asks the server to store a value. If ctx ends before the answer has come, the value may be stored or not, or may
// still be.
func (c *client) put(ctx context.Context, key, value string) error {
	if strings.Contains(key, "\x00") {
		return errors.New("a key has no zero byte")
	}
	number := c.puts + 1
	if err := c.rpc.Send(ctx, append(binary.BigEndian.AppendUint64(nil, number), key+"\x00"+value...)); err != nil {
		return err
	}
	c.puts = number
	for {
		m, err := c.rpc.Recv(ctx)
		if err != nil {
			return err
		}
		answer := string(m.Bytes())
		m.Release()
		if len(answer) < numberSize {
			return errors.New("the server is no kv server")
		}
		switch n := binary.BigEndian.Uint64([]byte(answer)); {
		case n < number: // of a put for which nobody waits any more
		case n > number:
			return fmt.Errorf("the server answers put %d, which was not sent", n)
		case len(answer) > numberSize:
			return errors.New(answer[numberSize:])
		default:
			return nil
		}
	}
}

// get reads a value from the server's memory.
func (c *client) get(ctx context.Context, key string) (value string, version uint64, err error) {
	for i := range probes {
		e, err := c.read(ctx, place(key, i, c.buckets))
		switch {
		case err != nil:
			return "", 0, err
		case e.version == 0:
			return "", 0, fmt.Errorf("%q: %w", key, errNotFound)
		case e.key == key:
			return e.value, e.version, nil
		}
	}
	return "", 0, fmt.Errorf("%q: %w", key, errNotFound)
}

// read reads a bucket until the bucket is whole.
func (c *client) read(ctx context.Context, i uint64) (bucket, error) {
	table := c.table.WithContext(ctx)
	for {
		if _, err := table.ReadAt(c.bucket[:], int64(i*bucketSize)); err != nil {
			return bucket{}, err
		}
		if e, err := decode(c.bucket[:]); !errors.Is(err, errTorn) {
			return e, err
		}
	}
}
