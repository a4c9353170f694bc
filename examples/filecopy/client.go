package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/adverb-rdma/adverb/examples/internal/node"
	"github.com/adverb-rdma/adverb/rdmamsg"
)

// put copies files to the server, forever if asked for.
func put(ctx context.Context, addr, local string, files []string, forever bool) error {
	for {
		ch, err := dial(ctx, addr, local)
		if err != nil {
			if forever && node.Pause(ctx) {
				continue // the server is not there yet
			}
			return err
		}
		fmt.Printf("connected from %v\n", ch.Conn().LocalAddr())
		err = putAll(ctx, ch, files, forever)
		ended := ch.Err() != nil
		err = errors.Join(err, ch.Close())
		if !forever || ctx.Err() != nil || !ended {
			return err
		}
		fmt.Printf("server gone: %v\n", err)
	}
}

func dial(ctx context.Context, addr, local string) (*rdmamsg.Channel, error) {
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
	return rdmamsg.Dial(ctx, at, &rdmamsg.Config{Dialer: d, KeepAlive: keepAlive, SendLimit: pieces * pieceSize})
}

func putAll(ctx context.Context, ch *rdmamsg.Channel, files []string, forever bool) error {
	for {
		for _, name := range files {
			start := time.Now()
			n, err := send(ctx, ch, name, forever)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if !forever {
				fmt.Printf("%s: %d bytes, verified, %.0f MB/s\n", name, n, float64(n)/1e6/time.Since(start).Seconds())
			}
		}
		if !forever {
			return nil
		}
	}
}

// send sends one file and waits for the server's verdict.
func send(ctx context.Context, ch *rdmamsg.Channel, name string, progress bool) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	size := info.Size()
	if err := sendJSON(ctx, ch, fileHeader{filepath.Base(name), size}); err != nil {
		return 0, err
	}
	sum := sha256.New()
	for left := size; left > 0; {
		if progress {
			fmt.Printf("progress: %d bytes of %s are left\n", left, name)
		}
		// Get waits until the server has fetched an earlier piece: this is the flow control.
		b, err := ch.SendPool().Get(ctx, int(min(left, pieceSize)))
		if err != nil {
			return 0, err
		}
		if _, err = io.ReadFull(f, b.Bytes()); err == nil {
			sum.Write(b.Bytes())
			left -= int64(b.Len())
			err = ch.SendBuffer(ctx, b)
		}
		if err != nil {
			b.Release()
			return 0, err
		}
	}
	if err := sendJSON(ctx, ch, fileTrailer{sum.Sum(nil)}); err != nil {
		return 0, err
	}
	m, err := ch.Recv(ctx)
	if err != nil {
		return 0, err
	}
	defer m.Release()
	if len(m.Bytes()) > 0 {
		return 0, fmt.Errorf("the server says: %s", m.Bytes())
	}
	return size, nil
}

func sendJSON(ctx context.Context, ch *rdmamsg.Channel, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return ch.Send(ctx, p)
}
