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
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/verbs"
)

// client is a connection to the server. It serves one goroutine at a time.
type client struct {
	rpc     *rdmamsg.Channel
	reads   *rdmacm.Conn
	table   verbs.RemoteAddr
	buckets uint64
	mr      *verbs.MR // where READs put a bucket
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
	if len(hello) != 28 {
		return errors.New("the server is no kv server")
	}
	c.table = verbs.RemoteAddr{VA: binary.BigEndian.Uint64(hello[8:]), RKey: verbs.RKey(binary.BigEndian.Uint32(hello[16:]))}
	c.buckets = binary.BigEndian.Uint64(hello[20:])
	session := append([]byte(nil), readsFor...)
	if c.reads, err = d.Dial(ctx, at, &rdmacm.Config{PrivateData: append(session, hello[:8]...)}); err != nil {
		return err
	}
	c.mr, err = c.reads.PD().AllocMR(bucketSize, verbs.AccessLocalWrite)
	return err
}

func (c *client) close() {
	c.rpc.Close()
	if c.reads != nil {
		c.reads.Close() // first, so that no READ is under way
	}
	if c.mr != nil {
		c.mr.Close()
	}
}

// put asks the server to store a value.
func (c *client) put(ctx context.Context, key, value string) error {
	if strings.Contains(key, "\x00") {
		return errors.New("a key has no zero byte")
	}
	if err := c.rpc.Send(ctx, []byte(key+"\x00"+value)); err != nil {
		return err
	}
	m, err := c.rpc.Recv(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	if answer := string(m.Bytes()); answer != "" {
		return errors.New(answer)
	}
	return nil
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

// read reads a bucket until it is whole.
func (c *client) read(ctx context.Context, i uint64) (bucket, error) {
	for {
		if _, err := c.reads.QP().PostSend([]verbs.SendWR{{
			Op: verbs.OpRDMARead, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{c.mr.SGE(0, bucketSize)}, Remote: c.table.Add(int(i * bucketSize)),
		}}); err != nil {
			return bucket{}, err
		}
		// The READ ends by itself: with a success, or with an error once the retries are over. To
		// leave before would mean that its completion is taken for that of the next.
		var wcs [1]verbs.WC
		if _, err := c.reads.SendCQ().Wait(context.WithoutCancel(ctx), wcs[:]); err != nil {
			return bucket{}, err
		}
		if err := wcs[0].Err(); err != nil {
			return bucket{}, err
		}
		if e, err := decode(c.mr.Bytes()); !errors.Is(err, errTorn) {
			return e, err
		}
		if ctx.Err() != nil {
			return bucket{}, context.Cause(ctx)
		}
	}
}
