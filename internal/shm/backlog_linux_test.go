//go:build !adverb_portable

package shm

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// box makes a lane that ends in this process, and counts the calls of its functions.
func box(t testing.TB) (o *Out, in *In, b *Inbox, works, wakes *int) {
	o, in, b = lane(t)
	works, wakes = new(int), new(int)
	b.OnRecords(func() {
		*works++
		for in.Next() != nil {
		}
		in.Release()
	}, func() { *wakes++ })
	o.Beside(b)
	return o, in, b, works, wakes
}

func put(o *Out) {
	o.Lock()
	defer o.Unlock()
	o.Reserve(8)
	o.Commit(8, 1)
	o.Publish()
}

// rang reports whether the bell of a sleeping inbox has rung.
func rang(t *testing.T, b *Inbox) bool {
	t.Helper()
	fd, err := b.Bell()
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// An attendant works off records of the inboxes of its process, which then need no bell. Without an attendant the bell rings.
func TestAttend(t *testing.T) {
	o, in, b, works, wakes := box(t)
	b.Sleep()
	Attend(func() {
		put(o)
		put(o)
		if *works != 0 {
			t.Error("records were worked off while the caller may hold locks")
		}
	})
	if *works != 1 || in.pos != o.pos {
		t.Errorf("after two records: %d calls, and read up to %d of %d, want one call, and all", *works, in.pos, o.pos)
	}
	if rang(t, b) {
		t.Error("the bell rang for records that an attendant worked off")
	}
	put(o)
	if !rang(t, b) || *works != 1 {
		t.Errorf("without an attendant: %d calls, and bell %v, want one call as before, and the bell", *works, rang(t, b))
	}
	b.Awake()
	if *wakes != 0 {
		t.Errorf("%d wake-ups, want none", *wakes)
	}
}

// Messages that the functions send are worked off too: an answer to a message, and the answer to that answer.
func TestAttendAnswers(t *testing.T) {
	o, _, b, works, _ := box(t)
	back, _, _, backWorks, _ := box(t)
	work, answers := b.worker.Load().work, 5
	b.OnRecords(func() {
		work()
		if answers--; answers > 0 {
			put(back)
			put(o)
		}
	}, nil)
	Attend(func() { put(o) })
	if *works != 5 || *backWorks != 4 {
		t.Errorf("%d and %d calls, want 5 and 4", *works, *backWorks)
	}
}

// An attendant does not work for others for ever. The goroutine of the inbox goes on then.
func TestAttendMost(t *testing.T) {
	_, _, b, works, wakes := box(t)
	w := *b.worker.Load()
	b.OnRecords(func() {
		w.work()
		b.Leave()
	}, w.wake)
	Attend(func() { b.Leave() })
	if *works != attendMost || *wakes != 1 {
		t.Errorf("%d calls and %d wake-ups, want %d and 1", *works, *wakes, attendMost)
	}
	if b.Leave() {
		t.Error("work was left to an attendant that had gone")
	}
}

// TestAttendLitmus: work that is left while threads attend and go is worked off, or its owner hears that nobody attends. Each
// thread leaves work for one inbox, and works off that of others.
func TestAttendLitmus(t *testing.T) {
	const rounds = 20000
	var mu sync.Mutex
	left, done := 0, 0
	b := new(Inbox)
	work := func() {
		mu.Lock()
		done = left
		mu.Unlock()
	}
	b.OnRecords(work, work)
	leave := func() bool {
		mu.Lock()
		left++
		mu.Unlock()
		return b.Leave()
	}
	var all sync.WaitGroup
	alone := 0 // without an attendant
	all.Go(func() {
		for range rounds {
			Attend(func() {
				if !leave() {
					t.Error("an attendant was told that nobody attends")
				}
			})
		}
	})
	all.Go(func() {
		for range rounds {
			if !leave() {
				work() // as the goroutine would
				alone++
			}
		}
	})
	all.Wait()
	if done != 2*rounds {
		t.Errorf("%d of %d works done, %d of them without an attendant", done, 2*rounds, alone)
	}
}
