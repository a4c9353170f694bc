//go:build !adverb_portable

package soft_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// envVictim makes the test binary a victim: a process that connects to the test and talks with it by a lane
// until it is killed. The variable's value is the device's name and the victim's number.
const envVictim = "ADVERB_TEST_VICTIM"

func init() { beChild(envVictim, victim) }

// A talker is an end of an RC connection. It sends texts as fast as the other end takes them, and checks the
// texts that come from there, byte by byte.
type talker struct {
	cq       *verbs.CQ
	qp       *verbs.QP
	mr       *verbs.MR
	self, to int
	sent     uint64
	got      atomic.Uint64
	busy     int
	wcs      [32]verbs.WC
}

const (
	talkMax   = 9000 // bytes of a message: three packets
	talkDepth = 4
	talkRecvs = 2 * talkDepth
	talkSide  = (talkDepth + talkRecvs) * talkMax // where the peer writes and reads
	talkSize  = talkSide + 64<<10
)

func newTalker(pd *verbs.PD, self, to int) *talker {
	k := &talker{self: self, to: to}
	k.cq = must(pd.Device().CreateCQ(64))
	k.mr = must(pd.AllocMR(talkSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead))
	k.qp = must(pd.CreateQP(verbs.QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq,
		Cap: verbs.QPCap{MaxSendWR: talkDepth + 2, MaxRecvWR: talkRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(k.qp.Init(1, verbs.AccessRemoteWrite|verbs.AccessRemoteRead))
	for slot := range talkRecvs {
		k.receive(slot)
	}
	return k
}

func (k *talker) connect(to verbs.QPN, gid verbs.GID, retry verbs.Retry) {
	check(k.qp.RTR(verbs.Peer{QPN: to, GID: gid}, verbs.Path{}))
	retry.MaxRDAtomic = 1
	check(k.qp.RTS(0, retry))
}

func (k *talker) close() {
	check(k.qp.Close())
	check(k.cq.Close())
	check(k.mr.Close())
}

func (k *talker) receive(slot int) {
	must(k.qp.PostRecv([]verbs.RecvWR{{ID: uint64(slot), SGList: []verbs.SGE{k.mr.SGE((talkDepth+slot)*talkMax, talkMax)}}}))
}

// send fills the send queue.
func (k *talker) send() {
	for ; k.busy < talkDepth; k.busy++ {
		at := int(k.sent%talkDepth) * talkMax
		n := text{kindRC, k.self, k.to, k.sent}.write(k.mr.Bytes()[at:], talkMax)
		must(k.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{k.mr.SGE(at, n)}}}))
		k.sent++
	}
}

// work handles completions. It fails when the connection does, and when a message is not the next or has a
// wrong byte. It reports the latter as torn.
func (k *talker) work(wcs []verbs.WC) (torn bool, err error) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.WCSuccess:
			return false, wc.Err()
		case wc.Op == verbs.WCSend:
			k.busy--
		case wc.Op == verbs.WCRecv:
			slot := int(wc.ID)
			t, err := readText(k.mr.Bytes()[(talkDepth+slot)*talkMax:][:wc.ByteLen], talkMax)
			if want := (text{kindRC, k.to, k.self, k.got.Load()}); err != nil || t != want {
				return true, fmt.Errorf("%+v, %v; want %+v", t, err, want)
			}
			k.got.Add(1)
			k.receive(slot)
		}
	}
	return false, nil
}

// openShards has all shards of a device open the files for their first QP. They keep them open, which would else look
// like a leak: the CQs are spread over the shards.
func openShards(pd *verbs.PD, gid verbs.GID) {
	var ks []*talker
	for range 2 * runtime.GOMAXPROCS(0) {
		k := newTalker(pd, 0, 0)
		k.connect(k.qp.QPN(), gid, patientRetry)
		ks = append(ks, k)
	}
	for _, k := range ks {
		k.close()
	}
}

// victim never returns. Besides messages it has a WRITE and a READ under way all the time.
func victim(device string, number int) {
	dev := must(verbs.Open(device))
	pd := must(dev.AllocPD())
	k := newTalker(pd, number, 0)
	side := must(pd.AllocMR(64<<10, verbs.AccessLocalWrite))
	gid := must(dev.GID(1, 0)).GID
	fmt.Println(uint32(k.qp.QPN()))
	var qpn, rkey uint32
	var va uint64
	must(fmt.Fscan(os.Stdin, &qpn, &rkey, &va))
	k.connect(verbs.QPN(qpn), gid, patientRetry)
	remote := verbs.RemoteAddr{VA: va, RKey: verbs.RKey(rkey)}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		must(k.qp.PostSend([]verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{side.SGE(0, side.Len())}, Remote: remote}}))
	}
	for {
		k.send()
		n := must(k.cq.Poll(k.wcs[:]))
		if n == 0 && number%2 == 0 {
			n = must(k.cq.Wait(context.Background(), k.wcs[:]))
		}
		for i := range k.wcs[:n] {
			if wc := &k.wcs[i]; wc.Status == verbs.WCSuccess && (wc.Op == verbs.WCRDMAWrite || wc.Op == verbs.WCRDMARead) {
				op := map[verbs.WCOpcode]verbs.Opcode{verbs.WCRDMAWrite: verbs.OpRDMAWrite, verbs.WCRDMARead: verbs.OpRDMARead}[wc.Op]
				must(k.qp.PostSend([]verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{side.SGE(0, side.Len())}, Remote: remote}}))
			}
		}
		if torn, err := k.work(k.wcs[:n]); torn {
			fmt.Println("torn:", err)
		} else {
			check(err)
		}
	}
}

// lanesMapped returns how many lanes this process has in its memory.
func lanesMapped() int {
	return bytes.Count(must(os.ReadFile("/proc/self/maps")), []byte("memfd:adverb-lane")) / 2 // the records are mapped twice, and once with the header
}

// filesButMemory returns how many files this process has open, but for those of registered memory: some of that
// rests before it is given back.
func filesButMemory() (n int) {
	for kind, k := range filesOpen() {
		if !strings.Contains(kind, "memfd:adverb-mr") {
			n += k
		}
	}
	return n
}

// filesOpen counts this process's files by their kind.
func filesOpen() map[string]int {
	kinds := map[string]int{}
	for _, e := range must(os.ReadDir("/proc/self/fd")) {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			kind, _, _ := strings.Cut(to, "[") // an inode
			if kind == "socket:" {
				kind += socketKind(must(strconv.Atoi(e.Name())))
			}
			kinds[kind]++
		}
	}
	return kinds
}

// socketKind says whose a socket of this process is, and who is at its other end, but for their numbers.
func socketKind(fd int) string {
	end := func(a unix.Sockaddr, err error) string {
		switch a := a.(type) {
		case *unix.SockaddrUnix:
			return path.Dir(a.Name)
		case nil:
			return fmt.Sprint(err)
		}
		return fmt.Sprintf("%T", a)
	}
	return end(unix.Getsockname(fd)) + "-" + end(unix.Getpeername(fd))
}

// TestKilledAmidLanes kills processes at random instants, from their start on, while they talk with this one by
// lanes. Nothing that they have sent is torn, connections of the same device go on, and all memory and files
// that the dead had caused are given back. With -soak=10m it is thousands.
func TestKilledAmidLanes(t *testing.T) {
	lanes(t)
	device := loopback(t) + "@" + loopAddr(36)
	dev := must(verbs.Open(device))
	pd := must(dev.AllocPD())
	gid := must(dev.GID(1, 0)).GID
	openShards(pd, gid)

	// The bystanders are two QPs of the very device that the victims talk with.
	x, y := newTalker(pd, 1, 2), newTalker(pd, 2, 1)
	x.connect(y.qp.QPN(), gid, patientRetry)
	y.connect(x.qp.QPN(), gid, patientRetry)
	ctx, stop := context.WithCancel(t.Context())
	var bystanders sync.WaitGroup
	for _, k := range []*talker{x, y} {
		bystanders.Go(func() {
			for k.send(); ctx.Err() == nil; k.send() { // Wait looks at ctx only when nothing has come
				n, err := k.cq.Wait(ctx, k.wcs[:])
				if err != nil {
					return
				}
				if _, err := k.work(k.wcs[:n]); err != nil {
					t.Errorf("bystander %d: %v", k.self, err)
					return
				}
			}
		})
	}
	files, mapped, before := filesButMemory(), lanesMapped(), filesOpen()

	random := newRand(t)
	end := time.Now().Add(*soak)
	var killers sync.WaitGroup
	var killed, talked, failed atomic.Int64
	for i := range 3 {
		seed := random.Uint64()
		killers.Go(func() {
			for n := 0; time.Now().Before(end) && !t.Failed(); n++ {
				v := &murder{t: t, pd: pd, gid: gid, device: device, number: 10 + n%1000*3 + i}
				got, err := v.commit(int(mix(seed+uint64(n))%(2*murderTalk)) - murderTalk/4)
				killed.Add(1)
				if got > 0 {
					talked.Add(1)
				}
				if err != nil {
					failed.Add(1)
				}
			}
		})
	}
	killers.Wait()
	got := [2]uint64{x.got.Load(), y.got.Load()}
	for limit := time.Now().Add(patience); x.got.Load() < got[0]+100 || y.got.Load() < got[1]+100; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("the bystanders stand still after %v messages, want 100 more of each", got)
		}
	}
	for limit := time.Now().Add(patience); lanesMapped() > mapped; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d lanes are mapped after all were killed; %d were before, want as many", lanesMapped(), mapped)
		}
	}
	const slack = maxFiles + maxBoxes // sockets to those who have gone close later
	for limit := time.Now().Add(patience); filesButMemory() > files+slack; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%d files are open after all were killed; %d were before, want %d more at most; now there are %v, and before %v", filesButMemory(), files, slack, filesOpen(), before)
		}
	}
	stop()
	bystanders.Wait()
	x.close()
	y.close()
	check(pd.Close())
	check(dev.Close())
	if talked.Load() == 0 {
		t.Error("no victim has lived long enough to send a message")
	}
	t.Logf("%d killed, %d of them after messages; %d connections noticed; the bystanders have exchanged %d messages", killed.Load(), talked.Load(), failed.Load(), got[0]+got[1])
}

// murderTalk is how many messages a victim sends before it is killed, on average.
const murderTalk = 50

// child is the test binary as another process, which says the number of its QP first.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
}

// beChild has this process be a child, if its environment has the variable: the name of a device, and a number. Such a child
// never returns.
func beChild(variable string, child func(device string, number int)) {
	if s := os.Getenv(variable); s != "" {
		var device string
		var number int
		must(fmt.Sscan(s, &device, &number))
		child(device, number)
	}
}

// startChild starts a child. The variable names the child's program.
func startChild(variable string) *child {
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), variable)
	c.cmd.Stderr = &c.errors
	c.in = must(c.cmd.StdinPipe())
	c.out = bufio.NewReader(must(c.cmd.StdoutPipe()))
	check(c.cmd.Start())
	return c
}

// qpn returns the number of the child's QP.
func (c *child) qpn() (verbs.QPN, error) {
	line, err := c.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	var n uint32
	must(fmt.Sscan(line, &n))
	return verbs.QPN(n), nil
}

// murder is the life of one victim, and its end.
type murder struct {
	t      *testing.T
	pd     *verbs.PD
	gid    verbs.GID
	device string
	number int

	*child
}

// commit kills a victim once it has sent a number of messages. A negative number says to kill it earlier. It
// returns how many messages have come, and the error by which the connection has noticed its end, if it was
// to wait for that.
func (m *murder) commit(messages int) (got uint64, err error) {
	m.child = startChild(fmt.Sprintf("%s=%s %d", envVictim, m.device, m.number))
	defer func() {
		m.cmd.Process.Kill()
		rest, _ := io.ReadAll(m.out)
		m.cmd.Wait()
		if s := string(rest) + m.errors.String(); s != "" {
			m.t.Errorf("victim %d says: %s, want nothing", m.number, s)
		}
	}()
	if messages < 0 && messages%4 == 0 {
		return 0, nil
	}
	qpn, err := m.qpn()
	if err != nil {
		m.t.Errorf("victim %d does not start: %v", m.number, err)
		return 0, err
	}
	k := newTalker(m.pd, 0, m.number)
	defer k.close()
	if messages < 0 && messages%4 == -1 { // we ask a dead process for a lane
		m.cmd.Process.Kill()
	}
	k.connect(qpn, m.gid, verbs.Retry{Timeout: 17, RetryCount: 3, RNRRetryCount: 7})
	fmt.Fprintln(m.in, uint32(k.qp.QPN()), uint32(k.mr.RKey()), k.mr.Remote(talkSide).VA) // it may be dead
	if messages < 0 {                                                                     // it is making its lane
		m.cmd.Process.Kill()
	}
	dead := messages < 0
	for k.send(); ; k.send() {
		if !dead && k.got.Load() >= uint64(messages) {
			dead = true
			m.cmd.Process.Kill()
			if messages%16 != 0 {
				return k.got.Load(), nil // and close all while packets are under way
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		n, err := k.cq.Wait(ctx, k.wcs[:])
		cancel()
		if err != nil {
			m.t.Errorf("victim %d: neither a message nor an error: %v", m.number, err)
			return k.got.Load(), err
		}
		torn, err := k.work(k.wcs[:n])
		if torn || err != nil && !dead {
			m.t.Errorf("victim %d, to be killed after %d messages: %v, want whole messages, and no error before it is dead", m.number, messages, err)
		}
		if err != nil {
			return k.got.Load(), err
		}
	}
}
