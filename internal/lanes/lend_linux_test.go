//go:build !adverb_portable

package lanes

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/shm"
)

const (
	fileSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE
	fileSize  = 8192
)

// testFilesMapped returns how many of a test's files this process has in its memory.
func testFilesMapped(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte("memfd:adverb-test"))
}

// lends asks whether a lane lends a file, as a QP does before each long packet.
func lends(o *shm.Out, f shm.File) bool {
	o.Lock()
	defer o.Unlock()
	return o.Lends(f, func() func() { return func() {} })
}

// TestLaneLends: the receiver maps the files that the sender lends, takes payloads from there, and unmaps files that are
// withdrawn. It does not map a file that could harm it, and the lane goes on.
func TestLaneLends(t *testing.T) {
	a, b := testAddr(71), testAddr(72)
	x, y := shareMemory(t, a), shareMemory(t, b)
	box := y.Inbox(b)
	o := x.Lane(a, b, y.block)
	if o == nil {
		t.Fatal("no lane")
	}
	bad := shm.File{ID: 4, FD: handovertest.Memory(t, fileSize, unix.F_SEAL_FUTURE_WRITE), Size: fileSize}
	good := shm.File{ID: 5, FD: handovertest.Memory(t, fileSize, fileSeals), Size: fileSize}
	before := testFilesMapped(t)
	lends(o, bad)
	handovertest.Await(t, "the file to be mapped", func() bool { return lends(o, good) })
	if lends(o, bad) || testFilesMapped(t) != before+1 {
		t.Errorf("lends a file that can shrink: %v; %d files are mapped, want 1", lends(o, bad), testFilesMapped(t)-before)
	}
	o.Lock()
	o.CommitLoan(copy(o.Reserve(1000), "hello"), shm.Loan{File: 5, Off: 100, Len: 8000, Packets: 3})
	o.Publish()
	o.Unlock()
	in := box.Lanes()[0]
	if got := string(in.Next()); got != "hello" || in.Lent() == nil || len(in.Lent().Payload) != 8000 || !in.Lent().Taken() {
		t.Errorf("%q came, with %v; want hello with 8000 bytes", got, in.Lent())
	}
	in.Release()
	o.Withdraw(5)
	handovertest.Await(t, "the file to be unmapped", func() bool { in.Next(); return testFilesMapped(t) == before })
	if lends(o, shm.File{ID: 5, FD: -1}) || o.Broken() {
		t.Error("lends a file that is no file, or the lane is broken")
	}
}

// TestLaneLendsNoDescriptor: a receiver that has no descriptor to spare for a file does not map it, and keeps its lane. All
// connections that use the lane would go by the network otherwise, for as long as they last.
func TestLaneLendsNoDescriptor(t *testing.T) {
	a, b := testAddr(77), testAddr(78)
	x, y := shareMemory(t, a), shareMemory(t, b)
	o := x.Lane(a, b, y.block)
	if o == nil {
		t.Fatal("no lane")
	}
	file := shm.File{ID: 5, FD: handovertest.Memory(t, fileSize, fileSeals), Size: fileSize}
	later := shm.File{ID: 6, FD: handovertest.Memory(t, fileSize, fileSeals), Size: fileSize}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	lends(o, file)
	refused := make(chan struct{})
	asked := o.Ask(shm.Ask{}, func(*shm.Access) bool { return false }, func() { close(refused) })
	if asked {
		<-refused // behind the file
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !asked || o.Broken() {
		t.Fatalf("asked %v, broken %v; want the lane to go on", asked, o.Broken())
	}
	handovertest.Await(t, "the next file to be mapped", func() bool { return lends(o, later) })
	if lends(o, file) {
		t.Error("lends the file that is not mapped")
	}
}

// TestHostileFiles: a sender that tells nonsense of files loses its lane, and nothing stays mapped or open.
func TestHostileFiles(t *testing.T) {
	a, b := testAddr(73), testAddr(74)
	y := shareMemory(t, b)
	box := y.Inbox(b)
	word := func(kind byte, id, size uint64) []byte {
		b := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64([]byte{kind}, id), size)
		return append(b, make([]byte, messageSize-len(b))...)
	}
	file := handovertest.Memory(t, fileSize, fileSeals)
	ring, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ring)
	before := testFilesMapped(t)
	for name, m := range map[string]struct {
		b   []byte
		fds []int
	}{
		"short":               {word(fileLent, 6, fileSize)[:messageSize-1], []int{file}},
		"long":                {append(word(fileLent, 6, fileSize), 0), []int{file}},
		"no file":             {word(fileLent, 6, fileSize), nil},
		"two files":           {word(fileLent, 6, fileSize), []int{file, file}},
		"withdrawal of files": {word(fileWithdrawn, 5, 0), []int{file}},
		"unknown kind":        {word(4, 5, 0), nil},
		"asks with a file":    {word(accessAsked, 5, 0), []int{file}},
	} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: testName(y.block), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		lane := handovertest.Memory(t, shm.FileSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		handOver(t, c, route{from: a, to: b}.request(), lane, ring)
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatalf("%s: no lane: %v", name, err)
		}
		handOver(t, c, word(fileWithdrawn, 1, 0)) // of which nobody has heard
		handOver(t, c, word(fileLent, 5, fileSize), file)
		answer := make([]byte, 100)
		if n, err := c.Read(answer); n != replySize || err != nil || answer[0] != fileMapped || binary.NativeEndian.Uint64(answer[1:]) != 5 {
			t.Errorf("%s: answer % x, %v to a right file; want its name", name, answer[:n], err)
		}
		handOver(t, c, m.b, m.fds...)
		if n, err := c.Read(answer); n != 0 || os.IsTimeout(err) {
			t.Errorf("%s: answer % x, %v; want the end", name, answer[:n], err)
		}
		c.Close()
		awaitLanes(t, box, 0)
	}
	if n := testFilesMapped(t); n != before {
		t.Errorf("%d files are still mapped, want none", n-before)
	}
}
