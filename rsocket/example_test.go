package rsocket_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	_ "github.com/adverb-rdma/adverb/provider/soft" // software devices
	"github.com/adverb-rdma/adverb/rsocket"
)

// HTTP over RDMA: the server serves a Listener, and the client's transport dials by this package.
func Example_http() {
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s by RDMA", r.URL.Path[1:])
	})}
	go server.Serve(l)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: rsocket.DialContext}}
	resp, err := client.Get("http://" + l.Addr().String() + "/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Println(string(body), err)
	client.CloseIdleConnections()
	// Output: hello by RDMA <nil>
}

// A peer writes into memory that this end has mapped, beside the stream.
func ExampleConn_WriteAt() {
	lc := rsocket.ListenConfig{}
	l, err := lc.Listen(context.Background(), "rsocket", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	d := rsocket.Dialer{Config: rsocket.Config{Maps: 1}} // the end that writes makes room for mappings
	conn, err := d.Dial("rsocket", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	defer accepted.Close()

	m, err := accepted.(*rsocket.Conn).Map(64, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(accepted, ".") // bytes that the peer reads after Map tell it that the mapping is there
	io.ReadFull(conn, make([]byte, 1))

	conn.(*rsocket.Conn).WriteAt([]byte("placed"), 1000)
	fmt.Fprint(conn, ".") // as this tells that the data is there
	io.ReadFull(accepted, make([]byte, 1))
	fmt.Printf("%s\n", m.Bytes()[:6])
	// Output: placed
}
