package soft_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// A server and a client find each other by address and port. The client sends a message. The server
// has posted a receive before the client could send.
func Example_connection() {
	ctx := context.Background()
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	printed := make(chan struct{})
	go func() { // the server
		defer close(printed)
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		var in *verbs.MR
		conn, err := req.Accept(ctx, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
			if in, err = c.PD().AllocMR(64, verbs.AccessLocalWrite); err != nil {
				return err
			}
			_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}})
			return err
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		var wcs [1]verbs.WC
		if _, err := conn.RecvCQ().Wait(ctx, wcs[:]); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", in.Bytes()[:wcs[0].ByteLen])
	}()

	conn, err := rdmacm.Dial(ctx, l.Addr(), nil) // the client
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	out, err := conn.PD().AllocMR(64, verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(out.Bytes(), "found by address and port")
	if _, err := conn.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{out.SGE(0, n)}}}); err != nil {
		log.Fatal(err)
	}
	<-printed
	// Output: found by address and port
}
