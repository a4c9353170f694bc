package ucma

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// FuzzCommands has a program write commands of any content, by two files, while it has IDs in several states. What is
// not refused may fail, and the other program, which is connected to the hostile one, still gets and makes connections.
func FuzzCommands(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22})
	f.Add(uint64(2), []byte("\x12\x12\x01\x08\x07\x0c\x0c\x0c\x06\x11\x10"))
	f.Add(uint64(3), append(uapi.Append(nil, uapi.CMHeader{Cmd: uapi.CMDestroyID, In: 16, Out: 4}), make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, seed uint64, commands []byte) {
		a, b := two(t)
		_, at := b.listener(uapi.PSTCP, 0)
		connected(a, b, at)
		a.routed(uapi.PSTCP, at)
		_, hostile := a.listener(uapi.PSTCP, 2)
		x := b.routed(uapi.PSTCP, hostile)
		b.connect(x, b.qp(verbs.QPTypeRC), "")
		u, _ := a.create(uapi.PSUDP)
		a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: u, Addr: in6(a.addr(false, 0))}, nil)
		other := newProgram(t, a.m)
		files := map[uint32]*File{0: a.f, 1: other.f, 2: nil, 3: b.f}
		a.files, other.files, other.arena = files, files, a.arena

		_ = a.f.Do(a, commands)
		r := rand.New(rand.NewPCG(seed, 0))
		for range 4 { // one that succeeds may need an ID of one before
			for _, n := range commands {
				p := a
				if n&128 != 0 {
					p = other
				}
				p.hostile(r, uint32(n&31), at)
			}
		}
		a.f.Close()

		// The other program's listener works on.
		c := newProgram(t, a.m)
		id := c.routed(uapi.PSTCP, at)
		c.connect(id, c.qp(verbs.QPTypeRC), "still here?")
		for {
			var ev uapi.CMEventResp
			err := b.try(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &ev)
			if errors.Is(err, ErrWouldBlock) {
				<-b.f.Readable()
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if p := conn(&ev); ev.Event == uint32(rdmacm.EventConnectRequest) && string(p.PrivateData[:11]) == "still here?" {
				return
			}
		}
	})
}

// hostile gives a command that no library would give.
func (p *program) hostile(r *rand.Rand, n uint32, peer interface{ Port() uint16 }) {
	sizes := [...]int{uapi.CMCreateID: 24, uapi.CMDestroyID: 16, uapi.CMBindIP: 40, uapi.CMResolveIP: 64, uapi.CMResolveRoute: 8, uapi.CMQueryRoute: 16,
		uapi.CMConnect: 288, uapi.CMListen: 8, uapi.CMAccept: 296, uapi.CMReject: 264, uapi.CMDisconnect: 4, uapi.CMInitQPAttr: 16, uapi.CMGetEvent: 8,
		uapi.CMSetOption: 24, uapi.CMNotify: 8, uapi.CMJoinIPMcast: 48, uapi.CMLeaveMcast: 16, uapi.CMMigrateID: 16, uapi.CMQuery: 16, uapi.CMBind: 136,
		uapi.CMResolveAddr: 272, uapi.CMJoinMcast: 152}
	size := r.IntN(300)
	if n < uint32(len(sizes)) && r.IntN(8) > 0 {
		size = sizes[n]
	}
	in := make([]byte, size)
	for i := 0; i+4 <= len(in); i += 4 {
		switch r.IntN(8) {
		case 0:
			binary.NativeEndian.PutUint32(in[i:], r.Uint32())
		case 1:
			copy(in[i:], sockaddr(withPort(p.addr(r.IntN(2) == 0, 0), peer.Port())))
		case 2, 3, 4:
			binary.NativeEndian.PutUint32(in[i:], r.Uint32N(8))
		}
	}
	if len(in) >= 8 && r.IntN(8) > 0 {
		switch n { // those that begin with an ID
		case uapi.CMResolveRoute, uapi.CMListen, uapi.CMReject, uapi.CMDisconnect, uapi.CMNotify, uapi.CMBind, uapi.CMResolveAddr:
			binary.NativeEndian.PutUint32(in, r.Uint32N(8))
		default: // those that begin with the place of the response
			binary.NativeEndian.PutUint64(in, respAt+uint64(r.Uint32N(1<<16)))
		}
	}
	if n == uapi.CMCreateID && len(in) >= 18 && r.IntN(8) > 0 {
		binary.NativeEndian.PutUint16(in[16:], []uint16{uapi.PSTCP, uapi.PSUDP, uapi.PSIB, uapi.PSIPoIB}[r.IntN(4)])
	}
	b := append(uapi.Append(nil, uapi.CMHeader{Cmd: n, In: uint16(len(in)), Out: uint16(r.IntN(800))}), in...)
	_ = p.f.Do(p, b)
}

// TestConcurrent has several threads of a program make and end IDs of connections, by files that they share, while the
// files get requests, IDs move, and a file ends.
func TestConcurrent(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	quit := make(chan struct{})
	var served, threads sync.WaitGroup
	for range 2 {
		served.Go(func() { // a thread has memory of its own
			p := &program{t: t, m: b.m, f: b.f, arena: make([]byte, 1<<16)}
			for {
				var ev uapi.CMEventResp
				switch err := p.try(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &ev); {
				case errors.Is(err, ErrWouldBlock):
					select {
					case <-p.f.Readable():
					case <-quit:
						return
					}
				case err != nil:
					t.Error(err)
					return
				case ev.Event == uint32(rdmacm.EventConnectRequest):
					qp := uapi.CMConnParam{QPNum: ev.ID + 1, ResponderResources: 1, Valid: 1}
					_ = p.try(uapi.CMAccept, uapi.CMAcceptArg{UID: uint64(ev.ID) + 1, ID: ev.ID, ConnParam: qp}, nil) // the peer may have given up
				case ev.Event == uint32(rdmacm.EventDisconnected) || ev.Event == uint32(rdmacm.EventRejected):
					_ = p.try(uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: ev.ID}, &uapi.CMDestroyResp{})
				}
			}
		})
	}
	second := newProgram(t, a.m)
	files := map[uint32]*File{0: a.f, 1: second.f}
	for i := range 4 {
		threads.Go(func() {
			p := &program{t: t, m: a.m, f: files[uint32(i%2)], arena: make([]byte, 1<<16), files: files}
			for range 20 {
				var (
					id   uapi.CMCreateResp
					resp uapi.CMDestroyResp
				)
				p.do(uapi.CMCreateID, uapi.CMCreate{UID: 1, Response: respAt, PS: uapi.PSTCP}, &id)
				p.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id.ID, DstAddr: in6(at)}, nil)
				p.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: id.ID}, nil)
				qp := uapi.CMConnParam{QPNum: uint32(i + 1), Valid: 1}
				p.do(uapi.CMConnect, uapi.CMConnectArg{ID: id.ID, ConnParam: qp}, nil)
				_ = p.try(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &uapi.CMEventResp{})
				from := p.f
				p.f = files[uint32(1-i%2)]
				p.do(uapi.CMMigrateID, uapi.CMMigrate{Response: respAt, ID: id.ID, FD: uint32(i % 2)}, &resp)
				p.do(uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: id.ID}, &resp)
				p.f = from
			}
		})
	}
	threads.Wait()
	threads.Go(a.f.Close)
	threads.Go(a.f.Close)
	threads.Wait()
	close(quit)
	served.Wait()
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if len(a.m.of) != 0 || len(second.f.queue) != 0 {
		t.Errorf("%d IDs and %d events are left, want none", len(a.m.of), len(second.f.queue))
	}
}
