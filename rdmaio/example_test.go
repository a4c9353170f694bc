package rdmaio_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/netip"
	"strings"
	"sync"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmaio"
	"github.com/adverb-rdma/adverb/verbs"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A server with a method that sums up the memory that the client lends, and a method that fills memory of the client.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	check(err)
	defer l.Close()
	var s rdmaio.Server
	s.Handle("sum", func(ctx context.Context, c *rdmaio.Call) ([]byte, error) {
		h := sha256.New()
		_, err := io.Copy(h, io.NewSectionReader(c.In, 0, c.In.Size())) // by RDMA READ
		return fmt.Appendf(nil, "%x", h.Sum(nil)[:4]), err
	})
	s.Handle("repeat", func(ctx context.Context, c *rdmaio.Call) ([]byte, error) {
		text := strings.Repeat(string(c.Arg), int(c.Out.Size())/len(c.Arg))
		n, err := c.Out.WriteAt([]byte(text), 0) // by RDMA WRITE
		return fmt.Append(nil, n, " bytes"), err
	})
	go s.Serve(ctx, l)

	client, err := rdmaio.Dial(ctx, l.Addr(), nil)
	check(err)
	defer client.Close()
	out, err := client.Bulk().Get(ctx, 1<<20)
	check(err)
	answer, err := client.Call(ctx, "repeat", []byte("adverb "), rdmaio.Bulk{Out: out})
	check(err) // after an error out is the client's
	fmt.Printf("%s: %s…\n", answer, out.Bytes()[:20])

	answer, err = client.Call(ctx, "sum", nil, rdmaio.Bulk{In: out})
	check(err)
	fmt.Printf("%s\n", answer)
	out.Release()
	// Output:
	// 1048572 bytes: adverb adverb adverb…
	// 9d986090
}

// Memory of a peer as a file. The memory's owner has registered the memory and sent a Span of the memory, and then has
// no part in the reads and writes.
func ExampleRegion() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	check(err)
	defer l.Close()
	var owner sync.WaitGroup
	owner.Go(func() { own(ctx, l) })
	defer owner.Wait()

	conn, err := rdmacm.Dial(ctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	r, err := rdmaio.NewRequester(conn.QP(), nil)
	check(err)
	defer r.Close()
	var span rdmaio.Span
	check(span.UnmarshalBinary(conn.PrivateData()[:rdmaio.SpanSize]))

	memory := r.Region(span).WithContext(ctx)
	_, err = memory.WriteAt([]byte("A better line."), 0)
	check(err)
	lines := bufio.NewScanner(io.NewSectionReader(memory, 0, memory.Size()))
	for lines.Scan() {
		fmt.Println(lines.Text())
	}
	check(lines.Err())
	// Output:
	// A better line.
	// Another line.
}

// own accepts one peer, and gives the peer memory.
func own(ctx context.Context, l *rdmacm.Listener) {
	req, err := l.Accept(ctx)
	check(err)
	span := make([]byte, rdmaio.SpanSize)
	conn, err := req.Accept(ctx, &rdmacm.Config{PrivateData: span, Setup: func(c *rdmacm.Conn) error {
		const text = "The first line\nAnother line.\n"
		mr, err := c.AllocMR(len(text), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
		if err != nil {
			return err
		}
		copy(mr.Bytes(), text)
		_, err = rdmaio.SpanOf(mr).AppendBinary(span[:0])
		return err
	}})
	check(err)
	<-conn.Disconnected()
	conn.Close()
}
