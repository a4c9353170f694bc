package rdmapool_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

func Example() {
	dev, err := verbs.Open("soft_lo")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	pool, err := rdmapool.New(pd, &rdmapool.Config{Limit: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	b, err := pool.Get(context.Background(), 1000)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Release() // once no work request names it any more
	n := copy(b.Bytes(), "in registered memory")
	fmt.Println(b.SGE(0, n).Length, "of", b.Len(), "bytes are to be sent")
	// Output: 20 of 1000 bytes are to be sent
}
