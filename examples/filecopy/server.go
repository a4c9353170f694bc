package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmamsg"
)

const (
	pieceSize = 1 << 20 // bytes of a file in one message
	pieces    = 4       // pieces that an end holds at a time
	// keepAlive is after how long a silent peer is asked for a sign of life.
	keepAlive = time.Second
	setupTime = 10 * time.Second
)

// A file is the header, its bytes in pieces, and a trailer. The answer follows the trailer, and is
// empty if all is well.
type fileHeader struct {
	Name string
	Size int64
}

type fileTrailer struct {
	SHA256 []byte
}

// serve accepts clients until ctx ends, and returns when serve has left the clients.
func serve(ctx context.Context, l *rdmacm.Listener, dir string) error {
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
		work.Go(func() { accept(ctx, r, dir) })
	}
}

func accept(ctx context.Context, r *rdmacm.Request, dir string) {
	setup, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	ch, err := rdmamsg.Accept(setup, r, &rdmamsg.Config{KeepAlive: keepAlive, RecvLimit: pieces * pieceSize})
	if err != nil {
		fmt.Printf("client %v failed to connect: %v\n", r.RemoteAddr(), err)
		return
	}
	client := ch.Conn().RemoteAddr()
	fmt.Printf("client arrived: %v\n", client)
	for err == nil {
		err = receive(ctx, ch, dir)
	}
	if err == io.EOF {
		err = errors.New("it has closed the connection")
	}
	fmt.Printf("client gone: %v: %v\n", client, err)
	ch.Close()
}

// receive takes one file. The file appears under its name only once the file has been verified.
func receive(ctx context.Context, ch *rdmamsg.Channel, dir string) error {
	var head fileHeader
	if err := recvJSON(ctx, ch, &head); err != nil {
		return err
	}
	if head.Name != filepath.Base(head.Name) || head.Name == "." || head.Name == ".." || head.Size < 0 {
		return fmt.Errorf("it sends a file with the name %q and the size %d", head.Name, head.Size)
	}
	sum := sha256.New()
	tmp, failed := os.CreateTemp(dir, ".filecopy-*")
	if failed == nil {
		defer os.Remove(tmp.Name()) // does nothing once the file has been renamed
		defer tmp.Close()
		failed = writePieces(ctx, ch, io.MultiWriter(tmp, sum), head.Size)
	} else {
		// An error of the channel shows below.
		_ = writePieces(ctx, ch, io.Discard, head.Size)
	}
	if err := ch.Err(); err != nil {
		return err
	}
	var tail fileTrailer
	if err := recvJSON(ctx, ch, &tail); err != nil {
		return err
	}
	if failed == nil {
		failed = finish(tmp, sum, tail.SHA256, filepath.Join(dir, head.Name))
	}
	return answer(ctx, ch, failed)
}

// writePieces writes the pieces of a file as they come. An error of the disk does not end the
// pieces: the sender hears of the error at the end.
func writePieces(ctx context.Context, ch *rdmamsg.Channel, w io.Writer, size int64) (failed error) {
	for size > 0 {
		m, err := ch.Recv(ctx)
		if err != nil {
			return err
		}
		if size -= int64(len(m.Bytes())); size < 0 && failed == nil {
			failed = fmt.Errorf("the pieces have %d bytes more than the file", -size)
		}
		if failed == nil {
			_, failed = w.Write(m.Bytes())
		}
		m.Release()
	}
	return failed
}

// finish compares the checksums, and gives the file its name.
func finish(tmp *os.File, sum hash.Hash, want []byte, name string) error {
	if got := sum.Sum(nil); !bytes.Equal(got, want) {
		return fmt.Errorf("the checksum is %x and should be %x", got, want)
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// answer tells the client how the copy went. The error that answer returns is the channel's error.
func answer(ctx context.Context, ch *rdmamsg.Channel, failed error) error {
	text := ""
	if failed != nil {
		text = failed.Error()
	}
	return ch.Send(ctx, []byte(text))
}

func recvJSON(ctx context.Context, ch *rdmamsg.Channel, v any) error {
	m, err := ch.Recv(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	return json.Unmarshal(m.Bytes(), v)
}
