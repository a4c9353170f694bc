//go:build !adverb_portable

package watch

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// testName is a name of a socket that nobody looks for: other tests may ask the programs of this host at the same time.
func testName(t *testing.T) string { return fmt.Sprintf("@adverb/test/%d/%s", os.Getpid(), t.Name()) }

// An answer that does not end is given up.
func TestAnswerBound(t *testing.T) {
	name := testName(t)
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for spaces := bytes.Repeat([]byte(" "), 1<<20); err == nil; {
			_, err = c.Write(spaces)
		}
	}()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * answerTime))
	if _, err := converse(c.(*net.UnixConn), WantStat); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("an endless answer: %v, want that it is too long", err)
	}
}

// A question that does not end is given up before much of it was read.
func TestRequestBound(t *testing.T) {
	name := testName(t)
	s, err := serve(name, func(Want) Process { return Process{} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const most = 16 << 20 // more than any socket has room for
	if n, err := io.Copy(c, io.LimitReader(zeros{}, most)); err == nil {
		t.Errorf("%d bytes of a question were taken, want an error", n)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A program holds so many conversations at a time. One more is turned away.
func TestConversationBound(t *testing.T) {
	name := testName(t)
	begun, over := make(chan struct{}), make(chan struct{})
	s, err := serve(name, func(Want) Process {
		begun <- struct{}{}
		<-over
		return Process{}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	defer close(over)
	for range conversations {
		c, err := net.Dial("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "stat\n")
		<-begun
	}
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "stat\n")
	ended := make(chan int, 1)
	go func() {
		n, _ := c.Read(make([]byte, 1))
		ended <- n
	}()
	select {
	case <-begun:
		t.Errorf("%d conversations are held, want %d", conversations+1, conversations)
	case n := <-ended:
		if n != 0 {
			t.Error("one more than there may be was answered, want it turned away")
		}
	}
}

// Of very many objects a program lists some, and says how many there are.
func TestObjectsBound(t *testing.T) {
	const n = maxObjects + 1
	r := verbs.Resources{
		PD: make([]string, n), CQ: make([]verbs.CQInfo, n), QP: make([]verbs.QPInfo, n), MR: make([]verbs.MRInfo, n),
		MW: make([]verbs.MWInfo, n), SRQ: make([]verbs.SRQInfo, n), CMID: make([]verbs.CMID, n),
	}
	var d Device
	d.list(&r)
	for kind, listed := range map[string]int{
		"pd": len(d.PD), "cq": len(d.CQ), "qp": len(d.QP), "mr": len(d.MR), "mw": len(d.MW), "srq": len(d.SRQ), "cm_id": len(d.CMID),
	} {
		if listed != maxObjects || d.Count[kind] != n {
			t.Errorf("%s: %d are listed of %d, want %d of %d", kind, listed, d.Count[kind], maxObjects, n)
		}
	}
}
