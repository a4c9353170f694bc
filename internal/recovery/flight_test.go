package recovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// checkFlight checks that the ranges cover [una, max) without gaps, and that nxt is the first lost.
func checkFlight(t testing.TB, f *flight) {
	t.Helper()
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
}

// sentPSN is the state of one sequence number in a flight.
type sentPSN struct {
	at             time.Duration
	lost, repeated bool
}

// modelFlight says the same as a flight, packet by packet.
type modelFlight struct {
	una, max uint64
	psns     map[uint64]sentPSN // of [una, max)
}

func (m *modelFlight) nxt() uint64 {
	for seq := m.una; seq < m.max; seq++ {
		if m.psns[seq].lost {
			return seq
		}
	}
	return m.max
}

func (m *modelFlight) send(now time.Duration, n uint64) (repeated bool) {
	from := m.nxt()
	repeated = from < m.max
	for seq := from; seq < from+n; seq++ {
		m.psns[seq] = sentPSN{at: now, repeated: repeated}
	}
	m.max = max(m.max, from+n)
	return repeated
}

func (m *modelFlight) acknowledge(seq uint64) (sentAt time.Duration, ok bool) {
	if seq > m.una {
		p := m.psns[seq-1]
		sentAt, ok = p.at, !p.lost && !p.repeated
	}
	for ; m.una < seq; m.una++ {
		delete(m.psns, m.una)
	}
	return sentAt, ok
}

func (m *modelFlight) lose(from, to uint64) {
	for seq := from; seq < to; seq++ {
		m.psns[seq] = sentPSN{lost: true}
	}
}

// ranges returns the shortest list of ranges that says the same.
func (m *modelFlight) ranges() []sentRange {
	var list []sentRange
	for seq := m.una; seq < m.max; seq++ {
		p := m.psns[seq]
		r := sentRange{end: seq + 1, at: p.at, lost: p.lost, repeated: p.repeated}
		if n := len(list); n > 0 {
			if last := list[n-1]; last.at == r.at && last.lost == r.lost && last.repeated == r.repeated {
				list[n-1] = r
				continue
			}
		}
		list = append(list, r)
	}
	return list
}

// TestFlight: a long random walk ends nowhere but where the model is.
func TestFlight(t *testing.T) {
	const steps, most = 3000, 60 // packets that are outstanding
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 0x666c79))
		var f flight
		m := modelFlight{psns: map[uint64]sentPSN{}}
		start := func(seq uint64) {
			f.start(seq)
			m.una, m.max = seq, seq
			clear(m.psns)
		}
		start(testSeq)
		var now time.Duration
		var history []string // to explain a failure
		var steppedOver int  // a kind of send that only a partial loss makes possible
		for range steps {
			if rnd.IntN(3) == 0 {
				now++
			}
			outstanding := m.max - m.una
			var step string
			var got, want [2]any
			switch k := rnd.IntN(20); {
			case k < 9 && outstanding < most:
				n := 1 + rnd.Uint64N(8) // may reach across packets that are not lost, or beyond max, as a READ's request does
				step = fmt.Sprintf("send(%d, %d) at %d", now, n, m.nxt())
				if from := m.nxt(); from < m.max && from+n > m.max {
					steppedOver++
				}
				got[0], want[0] = f.send(now, n, 0), m.send(now, n)
			case k < 15:
				seq := m.una + rnd.Uint64N(min(outstanding, 12)+1)
				if k == 9 {
					seq = m.max
				}
				step = fmt.Sprintf("acknowledge(%d)", seq)
				at, ok := f.acknowledge(seq)
				got = [2]any{at, ok}
				at, ok = m.acknowledge(seq)
				want = [2]any{at, ok}
				if !ok {
					got[0], want[0] = nil, nil // says nothing then
				}
			case k < 19 && outstanding > 0:
				from := m.una + rnd.Uint64N(outstanding)
				to := from + 1 + rnd.Uint64N(min(m.max-from, 10))
				step = fmt.Sprintf("lose [%d, %d)", from, to)
				f.Lose(from, to)
				m.lose(from, to)
			case rnd.IntN(30) == 0:
				seq := m.max + rnd.Uint64N(1000)
				step = fmt.Sprintf("start(%d)", seq)
				start(seq)
			case rnd.IntN(4) == 0:
				step = "loseAll"
				f.loseAll()
				m.lose(m.una, m.max)
			default:
				continue
			}
			history = append(history, step)
			if ranges := m.ranges(); got != want || f.una != m.una || f.nxt != m.nxt() || f.max != m.max || !slices.Equal(f.ranges, ranges) {
				t.Fatalf("seed %d: after %q: returned %v; una %d, nxt %d, max %d, ranges %+v\nwant %v; %d, %d, %d, %+v", seed,
					history[max(0, len(history)-12):], got, f.una, f.nxt, f.max, f.ranges, want, m.una, m.nxt(), m.max, ranges)
			}
			checkFlight(t, &f)
		}
		if steppedOver == 0 {
			t.Errorf("seed %d: no send began before max and ended behind it, want some", seed)
		}
	}
}

// TestFlightAcknowledged: only a packet that was sent once, and not given up, tells of a RTT.
func TestFlightAcknowledged(t *testing.T) {
	var f flight
	acknowledge := func(what string, seq uint64, at time.Duration, ok bool) {
		t.Helper()
		gotAt, gotOK := f.acknowledge(seq)
		if gotOK != ok || ok && gotAt != at {
			t.Errorf("%s: sent at %v, %v; want %v, %v", what, gotAt, gotOK, at, ok)
		}
		checkFlight(t, &f)
	}
	f.start(100)
	acknowledge("nothing", 100, 0, false)
	f.send(1*ms, 4, 0) // 100 to 103
	f.send(2*ms, 4, 0) // 104 to 107
	acknowledge("part of the first", 102, 1*ms, true)
	acknowledge("the same again", 102, 0, false)
	acknowledge("across to the second", 105, 2*ms, true)
	f.Lose(106, 107)
	acknowledge("just before the loss", 106, 2*ms, true)
	acknowledge("given up, and come after all", 107, 0, false)
	if f.nxt != 108 {
		t.Errorf("next is %d, want 108: nothing is lost any more", f.nxt)
	}
	f.loseAll()
	if repeated := f.send(3*ms, 1, 0); !repeated {
		t.Errorf("107 is sent again: repeated %v, want true", repeated)
	}
	if repeated := f.send(3*ms, 1, 0); repeated {
		t.Errorf("108 is sent: repeated %v, want false", repeated)
	}
	acknowledge("sent twice", 108, 0, false)
	acknowledge("sent once at the same time", 109, 3*ms, true)
}

// TestSendAgainBesidesArrived: repeats go around packets that have arrived.
func TestSendAgainBesidesArrived(t *testing.T) {
	var f flight
	f.start(100)
	f.send(1, 10, 0)
	if n := f.arrive(103, 105); n != 2 {
		t.Fatalf("%d have arrived, want 2", n)
	}
	f.LoseMissing(100, 110)
	f.sendAgain(2, 100, 110, 0)
	for seq := uint64(100); seq < 110; seq++ {
		r := f.ranges[f.index(seq)]
		if there := seq == 103 || seq == 104; r.arrived != there || r.repeated == there {
			t.Errorf("%d: arrived %v, repeated %v; want arrived %v, and repeated otherwise", seq, r.arrived, r.repeated, there)
		}
	}
	if f.nxt != f.max || f.InFlight() != 8 {
		t.Errorf("next is %d of %d, with %d on their way; want nothing left, and 8", f.nxt, f.max, f.InFlight())
	}
}

// TestFlightAllocs: a flight that has been as full before allocates nothing.
func TestFlightAllocs(t *testing.T) {
	var f flight
	f.start(testSeq)
	var now time.Duration
	round := func() {
		for range 32 {
			now++
			f.send(now, 4, 0)
		}
		for off := uint64(1); off < 120; off += 9 {
			f.Lose(f.una+off, f.una+off+3)
		}
		for f.nxt < f.max {
			now++
			f.send(now, 1, 0)
		}
		f.acknowledge(f.una + 50)
		f.loseAll()
		f.send(now, f.max-f.una, 0)
		f.acknowledge(f.max)
	}
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
