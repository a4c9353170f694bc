//go:build !adverb_portable

package shm

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// book has the messages about files between the ends of a lane. The receiver gets them at once.
type book struct {
	in     *In
	told   []File
	gone   []uint64
	refuse error // of the next word
	ends   map[uint64]bool
}

// lendingLane is a lane whose sender may lend.
func lendingLane(t *testing.T) (*Out, *In, *book) {
	t.Helper()
	o, in, _ := lane(t)
	b := &book{in: in, ends: map[uint64]bool{}}
	o.tell = func(f File, withdrawn bool) error {
		switch {
		case b.refuse != nil:
			return b.refuse
		case withdrawn:
			b.gone = append(b.gone, f.ID)
			in.Withdrawn(f.ID)
		default:
			b.told = append(b.told, f)
		}
		return nil
	}
	return o, in, b
}

// lends asks whether the lane lends a file, as the transport does.
func (b *book) lends(o *Out, f File) bool {
	o.Lock()
	defer o.Unlock()
	return o.Lends(f, func() func() {
		b.ends[f.ID] = false
		return func() { b.ends[f.ID] = true }
	})
}

// file makes a file with a pattern and seals it.
func file(t *testing.T, id uint64, size int, seals int) (File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("adverb-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	for i := range b {
		b[i] = byte(i*7 + int(id))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return File{ID: id, FD: fd, Size: int64(size)}, b
}

const fileSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE

// mapped makes a file that the lane lends.
func (b *book) mapped(t *testing.T, o *Out, id uint64) (File, []byte) {
	t.Helper()
	f, memory := file(t, id, 64<<10, fileSeals)
	if b.lends(o, f) {
		t.Fatalf("file %d is lent before the receiver has mapped it, want it lent later", id)
	}
	if err := b.in.Map(f); err != nil {
		t.Fatal(err)
	}
	o.Mapped(id)
	if !b.lends(o, f) {
		t.Fatalf("file %d is not lent though the receiver has mapped it, want it lent", id)
	}
	return f, memory
}

func commitLoan(o *Out, header string, l Loan) uint64 {
	o.Lock()
	defer o.Unlock()
	pos := o.CommitLoan(copy(o.Reserve(1000), header), l)
	o.Publish()
	return pos
}

// TestLend: a lent payload is read from the sender's memory, once the receiver has mapped it. The sender tells of a
// file once.
func TestLend(t *testing.T) {
	o, in, b := lendingLane(t)
	f, memory := b.mapped(t, o, 5)
	if len(b.told) != 1 {
		t.Errorf("the receiver was told %d times, want once", len(b.told))
	}
	commitLoan(o, "header", Loan{File: 5, Off: 4096, Len: 8192, Packets: 2})
	send(o, []byte("plain"))
	if got := in.Next(); string(got) != "header" {
		t.Fatalf("the record is %q, want header", got)
	}
	l := in.Lent()
	if l == nil || !bytes.Equal(l.Payload, memory[4096:4096+8192]) || in.Packets() != 2 {
		t.Fatalf("lent %v, want 8192 bytes from 4096 on, for 2 packets", l)
	}
	memory[4096]++
	if l.Payload[0] != memory[4096] {
		t.Error("the payload is a copy, want the sender's memory")
	}
	if !l.Taken() {
		t.Error("the payload is not taken, want it taken")
	}
	if got := in.Next(); string(got) != "plain" || in.Lent() != nil {
		t.Errorf("the next record is %q, lent %v; want plain, lent none", got, in.Lent())
	}
	if _, err := unix.Mmap(f.FD, 0, int(f.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the receiver can map the file to write there, want a refusal")
	}
}

// TestRecall: a payload that was recalled before it was taken is worthless, and a taken one is the receiver's.
func TestRecall(t *testing.T) {
	o, in, b := lendingLane(t)
	b.mapped(t, o, 5)
	l := Loan{File: 5, Len: 100, Packets: 1}
	var lent []uint64
	for range 4 {
		lent = append(lent, commitLoan(o, "x", l))
	}
	recall := func(records ...uint64) {
		o.Lock()
		defer o.Unlock()
		o.Recall(records)
	}
	in.Next()
	if !in.Lent().Taken() {
		t.Error("record 0: recalled, want it taken")
	}
	in.Next()
	recall(lent[0], lent[1]) // the first is taken, the second is about to be
	if in.Lent().Taken() {
		t.Error("record 1: taken, want it recalled")
	}
	in.Release()
	o.Lock()
	if got := o.Unread(lent); len(got) != 2 || got[0] != commitLoanAt(2) {
		t.Errorf("records at %v are unread, want those at %v", got, []uint64{commitLoanAt(2), commitLoanAt(3)})
	}
	o.Unlock()
	recall(commitLoanAt(2))
	in.Next()
	if in.Lent().Taken() {
		t.Error("record 2: taken, want it recalled")
	}
	in.Next()
	if !in.Lent().Taken() {
		t.Error("record 3: recalled, want it taken")
	}
}

// commitLoanAt is where record i of a lane is if all are loans with short headers.
func commitLoanAt(i int) uint64 { return uint64(i) * recordAlign }

// TestWithdraw: a withdrawn file is unmapped with the next look at the lane, and its loans are recalled. Withdrawing
// an unknown file does nothing.
func TestWithdraw(t *testing.T) {
	o, in, b := lendingLane(t)
	b.mapped(t, o, 5)
	b.mapped(t, o, 6)
	commitLoan(o, "5", Loan{File: 5, Len: 1, Packets: 1})
	commitLoan(o, "6", Loan{File: 6, Len: 1, Packets: 1})
	commitLoan(o, "5", Loan{File: 5, Len: 1, Packets: 1})
	in.Next()
	first := *in.Lent()
	o.Withdraw(5)
	o.Withdraw(7)
	if len(b.gone) != 1 || b.gone[0] != 5 {
		t.Errorf("files %v were withdrawn, want 5", b.gone)
	}
	if first.Taken() {
		t.Error("the record of file 5 that was read before: taken, want it recalled")
	}
	if in.Next(); len(in.Lent().Payload) != 1 || !in.Lent().Taken() {
		t.Errorf("the record of file 6: %v, want it taken", in.Lent())
	}
	if in.Next(); in.Lent().Payload != nil {
		t.Error("the record of file 5 that was not read has a payload, want none")
	}
	if n := len(in.files.open); n != 1 || in.files.size != 64<<10 {
		t.Errorf("%d files with %d bytes are mapped, want 1 with 65536", n, in.files.size)
	}
	b.refuse = errors.New("the receiver does not listen")
	hung := 0
	o.hangup = func() { hung++ }
	if o.Withdraw(6); !o.Broken() || hung != 1 {
		t.Errorf("the receiver cannot be told of a withdrawal: the lane is broken: %v, the sender has hung up %d times; want it broken, and once", o.Broken(), hung)
	}
	o.hangup = func() {}
}

// TestLendsNoMore: a sender lends few files, forgets them with the lane, and lends none where nobody listens.
func TestLendsNoMore(t *testing.T) {
	o, _, b := lendingLane(t)
	for id := range uint64(maxFiles + 5) {
		b.lends(o, File{ID: id, FD: -1, Size: 1})
	}
	if len(b.told) != maxFiles {
		t.Errorf("the receiver was told of %d files, want %d", len(b.told), maxFiles)
	}
	const late = maxFiles + 10
	o.Withdraw(0)
	if b.lends(o, File{ID: late, FD: -1, Size: 1}); b.told[len(b.told)-1].ID != late {
		t.Errorf("the receiver was told of file %d last, want %d, which has the place of one that was withdrawn", b.told[len(b.told)-1].ID, late)
	}
	delete(b.ends, 0) // Withdraw ends the watch
	o.Close()
	for id, ended := range b.ends {
		if !ended {
			t.Errorf("file %d is still watched after Close, want it ended", id)
		}
	}
	o, _, _ = lendingLane(t)
	o.tell = nil
	if b.lends(o, File{ID: 1}) || len(o.files) > 0 {
		t.Error("a lane whose receiver cannot be told lends a file")
	}
	o, _, b = lendingLane(t)
	b.refuse = errors.New("no")
	if b.lends(o, File{ID: 1}); len(o.files) > 0 || len(b.ends) > 0 {
		t.Error("a file of which the receiver could not be told counts as known")
	}
}

// TestLendAnew: a sender that withdraws its files, and lends as much anew, finds room for all of it, though the
// receiver has not looked at the lane since. It asks for each file once.
func TestLendAnew(t *testing.T) {
	o, in, b := lendingLane(t)
	for id := range uint64(maxFiles) {
		b.mapped(t, o, id)
	}
	for id := range uint64(maxFiles) {
		o.Withdraw(id)
		b.mapped(t, o, maxFiles+id)
	}
	in.Next()
	if n := len(in.files.open); n != maxFiles || in.files.size != maxFiles*64<<10 {
		t.Errorf("%d files of %d bytes are mapped after a look at the lane, want %d of %d", n, in.files.size, maxFiles, maxFiles*64<<10)
	}
}

// TestForeignFiles: a receiver maps no file that could kill it, and not too many.
func TestForeignFiles(t *testing.T) {
	_, in, inbox := lane(t)
	f, _ := file(t, 1, 4096, unix.F_SEAL_FUTURE_WRITE)
	if err := in.Map(f); !errors.Is(err, errFile) {
		t.Errorf("a file that can shrink: got %v, want %v", err, errFile)
	}
	f, _ = file(t, 1, 4096, fileSeals)
	if err := in.Map(File{ID: 1, FD: f.FD, Size: 8192}); !errors.Is(err, errFile) {
		t.Errorf("a file that is smaller than it is said to be: got %v, want %v", err, errFile)
	}
	for id := range uint64(maxFiles) {
		f.ID = id
		if err := in.Map(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Map(f); !errors.Is(err, errFiles) {
		t.Errorf("the same file again: got %v, want %v", err, errFiles)
	}
	f.ID = maxFiles
	if err := in.Map(f); !errors.Is(err, errFiles) {
		t.Errorf("file %d: got %v, want %v", maxFiles, err, errFiles)
	}
	for range 2 * maxFiles { // before the next look at the lane
		in.Withdrawn(1)
	}
	if n := len(in.files.withdrawn); n != 1 {
		t.Errorf("%d words of one file's end wait, want 1: a sender may send any number", n)
	}
	for id := range uint64(2 * maxFiles) {
		f.ID = 100 + id
		_ = in.Map(f)
		in.Withdrawn(f.ID)
	}
	if n := len(in.files.withdrawn) + len(in.files.open); n != 2*maxFiles {
		t.Errorf("%d files are mapped that a sender has lent and withdrawn before the next look at the lane, want %d at most", n, 2*maxFiles)
	}
	inbox.Close()
	if err := in.Map(f); !errors.Is(err, errFiles) || len(in.files.open) > 0 {
		t.Errorf("once the lane has ended: got %v with %d files mapped, want %v with none", err, len(in.files.open), errFiles)
	}
}

// TestNonsenseLoans: a record has no payload if its loan is of memory that the receiver has not mapped.
func TestNonsenseLoans(t *testing.T) {
	o, in, b := lendingLane(t)
	b.mapped(t, o, 5)
	const size = 64 << 10
	for name, l := range map[string]Loan{
		"unknown file":     {File: 6, Len: 1, Packets: 1},
		"beyond the file":  {File: 5, Off: size, Len: 0, Packets: 1},
		"over its end":     {File: 5, Off: size - 1, Len: 2, Packets: 1},
		"far beyond":       {File: 5, Off: 1<<64 - 1, Len: 2, Packets: 1},
		"no packets":       {File: 5, Len: 1},
		"too many packets": {File: 5, Len: 1, Packets: maxPackets + 1},
	} {
		commitLoan(o, "x", l)
		if b := in.Next(); b == nil || in.Lent() == nil || in.Lent().Payload != nil {
			t.Errorf("%s: got %q, lent %v; want a record that lends nothing", name, b, in.Lent())
		}
	}
	o.Lock()
	o.putHeader(o.pos, 3, lent) // too short for a loan
	o.pos += space(3)
	o.Publish()
	o.Unlock()
	if b := in.Next(); b == nil || in.Lent() == nil || in.Lent().Payload != nil {
		t.Errorf("a short record: got %q, lent %v; want a record that lends nothing", b, in.Lent())
	}
}
