package shm

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
)

// A long payload need not be copied into a lane. The sender lends the payload: the record names its place in a file
// of the sender, and the receiver, which has mapped the file, reads it there. The sender tells the receiver of a file
// once, by the socket that the lane was made by, and copies payloads until the receiver has answered that it has
// mapped the file.
//
// The sender recalls a loan when it gives the memory back to its program before the receiver has taken all of the
// payload: because the connection has failed, or the region is closed. The sender does not wait for the receiver. A
// receiver that has begun to take such a payload learns at the end, by Lent.Taken, that its copy is worthless.

// The states of a record.
const (
	inLane   = iota // the payload is in the record
	lent            // the payload is in a file
	taken           // the receiver has taken the payload
	recalled        // the file may have changed
	skipped         // there is none: see Out.turn
)

// A record in the lane stands for a number of packets. That number is in the word of the record's state, shifted by
// packetsShift bits.
const packetsShift = 8

const (
	// The sender of a lane lends up to maxFiles files, and the receiver maps up to maxMapped bytes of them.
	maxFiles  = 64
	maxMapped = 64 << 30
)

// File is memory that a sender lends.
type File struct {
	ID   uint64 // the sender's name for the file, which no other file gets
	FD   int
	Off  int64 // in the file behind FD, of the memory's first byte
	Size int64 // of the memory
}

// lentFile is a file that the receiver was told of.
type lentFile struct {
	mapped bool
	forget func()
	loans  []uint64 // positions of the records with payload in the file that may not have been read
}

// Loan is where the payload of a record lies.
type Loan struct {
	File, Off uint64
	Len       uint32
	Packets   uint32 // of the record
}

const loanSize = 24

// CommitLoan makes the first n bytes of the reserved space a record whose payload lies elsewhere. The next loanSize
// bytes of the space name the payload's place. CommitLoan returns the record's position, for Recall.
func (o *Out) CommitLoan(n int, l Loan) (pos uint64) {
	pos = o.pos
	b := o.record(pos, n+loanSize)[n:]
	binary.NativeEndian.PutUint64(b, l.File)
	binary.NativeEndian.PutUint64(b[8:], l.Off)
	binary.NativeEndian.PutUint32(b[16:], l.Len)
	binary.NativeEndian.PutUint32(b[20:], l.Packets)
	o.putHeader(pos, n+loanSize, lent)
	o.pos += space(n + loanSize)
	if f := o.files[l.File]; f != nil {
		f.loans = append(o.Unread(f.loans), pos)
	}
	return pos
}

// Unread returns those of the positions of records, which are in order, that the receiver may not have finished, in
// the same memory. The caller holds the lane's lock.
func (o *Out) Unread(records []uint64) []uint64 {
	if o.closed {
		return records[:0]
	}
	read, head := 0, o.head.Load()
	for read < len(records) && records[read] < head {
		read++
	}
	if read == 0 {
		return records
	}
	return records[:copy(records, records[read:])]
}

// Recall takes back the loans of the records at positions that are in order. The caller holds the lane's lock.
func (o *Out) Recall(records []uint64) {
	for _, pos := range o.Unread(records) {
		o.state(pos).CompareAndSwap(lent, recalled)
	}
}

// Lends reports whether the receiver has mapped a file. If the receiver does not know the file, Lends tells it. watch
// is then called. It returns a function that ends the watch for the file's end. The caller holds the lane's lock.
func (o *Out) Lends(f File, watch func() (forget func())) bool {
	if l := o.files[f.ID]; l != nil {
		return l.mapped
	}
	if o.tell == nil || len(o.files) >= maxFiles || o.tell(f, false) != nil {
		return false
	}
	if o.files == nil {
		o.files = map[uint64]*lentFile{}
	}
	o.files[f.ID] = &lentFile{forget: watch()}
	return false
}

// Mapped takes note that the receiver has mapped a file.
func (o *Out) Mapped(id uint64) {
	o.Lock()
	defer o.Unlock()
	if l := o.files[id]; l != nil {
		l.mapped = true
	}
}

// Withdraw ends the lending of a file, and takes back the file's loans. The receiver gives its memory back.
func (o *Out) Withdraw(id uint64) {
	o.Lock()
	defer o.Unlock()
	f := o.files[id]
	if f == nil {
		return
	}
	o.Recall(f.loans)
	delete(o.files, id)
	if o.tell(File{ID: id}, true) != nil {
		// A receiver that cannot be told would keep the memory. It keeps none once the lane has ended.
		o.broken.Store(true)
		o.hangup()
	}
}

// forgetFiles ends all lending, and takes back all loans: nobody else can from then on. The caller holds the lane's
// lock.
func (o *Out) forgetFiles() {
	for _, l := range o.files {
		o.Recall(l.loans)
		l.forget()
	}
	o.files = nil
}

// Lent is a payload that the sender lends.
type Lent struct {
	Payload []byte // nil if the sender lends no such memory
	state   *atomic.Uint32
}

// Lent returns the lent payload of the record that Next has returned last, or nil if the payload is in the record. It
// is valid until the next call of Next.
func (i *In) Lent() *Lent {
	if i.lent.state == nil {
		return nil
	}
	return &i.lent
}

// Taken is called once the payload was copied. It reports whether the copy has the bytes that the sender lent.
func (l *Lent) Taken() bool { return l.state.CompareAndSwap(lent, taken) }

// A record stands for maxPackets packets at most.
const maxPackets = 1 << 16

// borrow finds the payload that a record lends. It returns the rest of the record.
func (i *In) borrow(b []byte) []byte {
	i.lent.Payload = nil
	if len(b) < loanSize {
		return b
	}
	n := len(b) - loanSize
	at := b[n:]
	l := Loan{
		File: binary.NativeEndian.Uint64(at), Off: binary.NativeEndian.Uint64(at[8:]),
		Len: binary.NativeEndian.Uint32(at[16:]), Packets: binary.NativeEndian.Uint32(at[20:]),
	}
	file := i.files.get(l.File)
	if size := uint64(len(file)); l.Off < size && uint64(l.Len) <= size-l.Off && l.Packets > 0 && l.Packets <= maxPackets {
		i.lent.Payload, i.packets = file[l.Off:l.Off+uint64(l.Len)], int(l.Packets)
	}
	return b[:n]
}

// mapped are the files of a sender that its receiver has mapped.
type mapped struct {
	gone atomic.Bool // some were withdrawn

	mu        sync.Mutex
	open      map[uint64]mappedFile
	size      int64 // of these and those
	withdrawn []mappedFile
	closed    bool
}

type mappedFile struct {
	bytes []byte
	unmap func()
}

var errFiles = errors.New("the lane has all the files that it may have")

// room fails if another file of a size is too much. The sender lends new files as soon as it has withdrawn some, and
// asks for each once. So withdrawn files that are still mapped do not count against the new ones, but have as much
// room of their own.
func (m *mapped) room(id uint64, size int64) error {
	if _, ok := m.open[id]; ok || m.closed || len(m.open) >= maxFiles || len(m.open)+len(m.withdrawn) >= 2*maxFiles ||
		size <= 0 || size > maxMapped-m.size {
		return errFiles
	}
	return nil
}

func (m *mapped) get(id uint64) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[id].bytes
}

// Withdrawn takes note that the sender has withdrawn a file. The next call of Next unmaps it.
func (i *In) Withdrawn(id uint64) {
	m := &i.files
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := m.open[id]; ok {
		delete(m.open, id)
		m.withdrawn = append(m.withdrawn, f)
		m.gone.Store(true)
	}
}

// drop unmaps the withdrawn files.
func (m *mapped) drop() {
	if !m.gone.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone.Store(false)
	for _, f := range m.withdrawn {
		m.size -= int64(len(f.bytes))
		f.unmap()
	}
	clear(m.withdrawn)
	m.withdrawn = m.withdrawn[:0]
}

func (m *mapped) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, f := range m.open {
		f.unmap()
	}
	for _, f := range m.withdrawn {
		f.unmap()
	}
	m.open, m.withdrawn = nil, nil
}
