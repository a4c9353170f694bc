package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// serveOne accepts one connection, takes one message, and prints it.
func serveOne(ctx context.Context, l *rdmacm.Listener) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	conn, err := r.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) error {
		// The peer may send as soon as it is connected, so the receive is posted here.
		in, err := c.AllocMR(64, verbs.AccessLocalWrite) // closed with the connection
		if err != nil {
			return err
		}
		c.Context = in
		_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}})
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	var wcs [1]verbs.WC
	if _, err := conn.RecvCQ().Wait(ctx, wcs[:]); err != nil {
		return err
	}
	if err := wcs[0].Err(); err != nil {
		return err // WC_WR_FLUSH_ERR if the connection has ended
	}
	fmt.Printf("received %q\n", conn.Context.(*verbs.MR).Bytes()[:wcs[0].ByteLen])
	return nil
}

// A server and a client, which would be two programs.
func ExampleDial() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error)
	go func() { served <- serveOne(ctx, l) }()

	conn, err := rdmacm.Dial(ctx, l.Addr(), &rdmacm.Config{QP: verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 8, MaxInlineData: 64}}})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.QP().PostSend([]verbs.SendWR{{
		Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: []byte("hello"),
	}}); err != nil {
		log.Fatal(err)
	}
	var wcs [1]verbs.WC
	if _, err := conn.SendCQ().Wait(ctx, wcs[:]); err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(wcs[0].Err(), <-served); err != nil {
		log.Fatal(err)
	}
	// Output: received "hello"
}

// Errors of Dial can be told apart by errors.Is.
func ExampleDial_refused() {
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	addr := l.Addr()
	l.Close()
	_, err = rdmacm.Dial(context.Background(), addr, nil)
	fmt.Println("refused:", errors.Is(err, rdmacm.ErrRefused))
	// Output: refused: true
}

// The end of a connection flushes the receives that are posted. So a program that waits for a
// message hears of the end by the same call.
func ExampleConn_Disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error)
	go func() { served <- serveOne(ctx, l) }()
	conn, err := rdmacm.Dial(ctx, l.Addr(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Disconnect(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the server's receive was flushed:", errors.Is(<-served, verbs.WCFlushErr))
	// Output: the server's receive was flushed: true
}

// A program that has nothing posted waits for the end, and asks why it came.
func ExampleConn_Cause() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() { // the peer ends the connection when it is made
		r, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		conn, err := r.Accept(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		conn.Close()
	}()
	conn, err := rdmacm.Dial(ctx, l.Addr(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	select {
	case <-conn.Disconnected():
		switch err := conn.Cause(); {
		case errors.Is(err, rdmacm.ErrDisconnected):
			fmt.Println("the peer has ended the connection")
		case errors.Is(err, rdmacm.ErrTimeout):
			fmt.Println("the peer has vanished")
		default:
			fmt.Println(err)
		}
	case <-ctx.Done():
		log.Fatal(ctx.Err())
	}
	// Output: the peer has ended the connection
}
