package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rdmapool"
)

const (
	// keepAlive is after how long a silent peer is asked for a sign of life.
	keepAlive = time.Second
	setupTime = 20 * time.Second
)

// channelConfig keeps a connection small: four receives and four sends of a kilobyte. Larger
// messages take memory only while they are under way, and never more than a megabyte each way.
var channelConfig = rdmamsg.Config{Depth: 4, EagerSize: 1000, KeepAlive: keepAlive, SendLimit: 1 << 20, RecvLimit: 1 << 20}

// methods are the methods that can be called.
var methods = map[string]func([]byte) ([]byte, error){
	"echo":  func(p []byte) ([]byte, error) { return p, nil },
	"upper": func(p []byte) ([]byte, error) { return bytes.ToUpper(p), nil },
}

// A call is its number, the length of the method's name, the name and the argument. An answer is the
// number of the call, a byte that is 0 for a result and 1 for an error, and the text of either.
const (
	idSize               = 8 // of the number
	callHead, answerHead = idSize + 1, idSize + 1
)

// keepOut is the longest answer whose memory a connection keeps for the next.
const keepOut = 64 << 10

// serve accepts clients until ctx ends, and returns when serve has left the clients.
func serve(ctx context.Context, l *rdmacm.Listener) error {
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
		work.Go(func() { accept(ctx, r) })
	}
}

func accept(ctx context.Context, r *rdmacm.Request) {
	setup, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	ch, err := rdmamsg.Accept(setup, r, &channelConfig)
	if err != nil {
		fmt.Printf("client %v failed to connect: %v\n", r.RemoteAddr(), err)
		return
	}
	client := ch.Conn().RemoteAddr()
	fmt.Printf("client arrived: %v\n", client)
	err = answerCalls(ctx, ch)
	if err == io.EOF {
		err = errors.New("it has closed the connection")
	}
	fmt.Printf("client gone: %v: %v\n", client, err)
	ch.Close()
}

// answerCalls answers until the channel ends.
func answerCalls(ctx context.Context, ch *rdmamsg.Channel) error {
	var out []byte
	for {
		m, err := ch.Recv(ctx)
		if err != nil {
			return err
		}
		out, err = answer(out[:0], m.Bytes())
		m.Release()
		if err != nil {
			return err
		}
		err = ch.Send(ctx, out)
		if errors.Is(err, rdmamsg.ErrTooLong) || errors.Is(err, rdmapool.ErrTooLarge) { // the call fails, and the connection goes on
			err = ch.Send(ctx, fmt.Appendf(append(out[:idSize:idSize], 1), "the answer is too long: %v", err))
		}
		if err != nil {
			return err
		}
		if cap(out) > keepOut {
			out = nil
		}
	}
}

// answer appends the answer to a call. The error is for a call that is none.
func answer(out, call []byte) ([]byte, error) {
	if len(call) < callHead || len(call)-callHead < int(call[idSize]) {
		return nil, fmt.Errorf("a call of %d bytes is cut short", len(call))
	}
	name, arg := call[callHead:callHead+int(call[idSize])], call[callHead+int(call[idSize]):]
	out = append(out, call[:idSize]...)
	method := methods[string(name)]
	if method == nil {
		return fmt.Appendf(append(out, 1), "no method %q", name), nil
	}
	result, err := method(arg)
	if err != nil {
		return append(append(out, 1), err.Error()...), nil
	}
	return append(append(out, 0), result...), nil
}

// appendCall appends a call.
func appendCall(p []byte, id uint64, method string, arg []byte) []byte {
	p = binary.BigEndian.AppendUint64(p, id)
	p = append(append(p, byte(len(method))), method...)
	return append(p, arg...)
}
