package rdmamsg_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmamsg"
)

// echo sends every message back.
func echo(ctx context.Context, l *rdmacm.Listener) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	ch, err := rdmamsg.Accept(ctx, r, nil)
	if err != nil {
		return err
	}
	defer ch.Close()
	for {
		m, err := ch.Recv(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		err = ch.Send(ctx, m.Bytes())
		m.Release()
		if err != nil {
			return err
		}
	}
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go echo(ctx, l)

	ch, err := rdmamsg.Dial(ctx, l.Addr(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()
	for _, n := range []int{0, 100, 10 << 20} {
		if err := ch.Send(ctx, make([]byte, n)); err != nil {
			log.Fatal(err)
		}
		m, err := ch.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(len(m.Bytes()), "bytes came back")
		m.Release()
	}
	// Output:
	// 0 bytes came back
	// 100 bytes came back
	// 10485760 bytes came back
}

// A large message is built in registered memory, and then goes without a copy.
func ExampleChannel_SendBuffer() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go echo(ctx, l)
	ch, err := rdmamsg.Dial(ctx, l.Addr(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer ch.Close()

	b, err := ch.SendPool().Get(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i)
	}
	if err := ch.SendBuffer(ctx, b); err != nil { // from here on b is the channel's
		b.Release()
		log.Fatal(err)
	}
	m, err := ch.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Release()
	fmt.Println(len(m.Bytes()), m.Bytes()[300])
	// Output: 1048576 44
}
