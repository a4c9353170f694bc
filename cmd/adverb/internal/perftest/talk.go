package perftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// version is that of the exchange which this end speaks, as the C programs print it: 6.10 is
// perftest 4.5-0.20. Programs before oldestVersion exchange something else.
const (
	version       = "6.10"
	oldestVersion = 5.70
	versionSize   = 16
	mtuSize       = 2 // a digit, the code of the MTU, and a NUL
)

// pipe carries the messages of the exchange. There are two: TCP, and a connection of rdma_cm.
type pipe interface {
	send(b []byte) error
	receive(b []byte) error // fills b with the peer's bytes, once it has sent them
	// leave waits until the peer has left, for a short time, and closes the pipe.
	leave() error
}

// talk is the exchange of the two ends. It goes in steps in which each end says as much as the
// other, and the client speaks first.
type talk struct {
	pipe
	first    bool // this end is the client
	encoding encoding
	turn     int64 // when this end last let the peer go on
}

// swap sends mine, and fills theirs with as much of the peer's.
func (t *talk) swap(mine, theirs []byte) error {
	if t.first {
		if err := t.say(mine); err != nil {
			return err
		}
	}
	if err := t.receive(theirs); err != nil {
		return err
	}
	if !t.first {
		return t.say(mine)
	}
	return nil
}

// say sends the bytes that the peer waits for. The peer does not go on before.
func (t *talk) say(mine []byte) error {
	t.turn = now()
	return t.send(mine)
}

// swapDest tells the peer of d, and returns the peer's own.
func (t *talk) swapDest(d *dest) (dest, error) {
	theirs := make([]byte, t.encoding.size())
	if err := t.swap(d.appendTo(nil, t.encoding), theirs); err != nil {
		return dest{}, err
	}
	return decodeDest(theirs, t.encoding)
}

// sync waits until the peer has come to the same point. The programs exchange a dest again for that.
func (t *talk) sync(d *dest) error {
	_, err := t.swapDest(d)
	return err
}

// swapVersions refuses a peer that is too old.
func (t *talk) swapVersions() error {
	mine, theirs := make([]byte, versionSize), make([]byte, versionSize)
	copy(mine, version)
	if err := t.swap(mine, theirs); err != nil {
		return err
	}
	text, _, _ := bytes.Cut(theirs, []byte{0})
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return fmt.Errorf("the peer's version is %q, and that is none: is the peer another program? start the same one at both ends",
			bytes.TrimRight(theirs, "\x00"))
	}
	if v < oldestVersion {
		return fmt.Errorf("the peer's version is %q: %.2f or later can be talked to, which is perftest 4.4", text, oldestVersion)
	}
	return nil
}

// swapInt exchanges a number that is not negative.
func (t *talk) swapInt(mine int) (int, error) {
	var theirs [4]byte
	if err := t.swap(binary.BigEndian.AppendUint32(nil, uint32(mine)), theirs[:]); err != nil {
		return 0, err
	}
	v := int32(binary.BigEndian.Uint32(theirs[:]))
	if v < 0 {
		return 0, fmt.Errorf("the peer says %d where a size belongs: is it the same program?", v)
	}
	return int(v), nil
}

// swapMTU exchanges the code of a path MTU.
func (t *talk) swapMTU(mine int) (int, error) {
	b, theirs := make([]byte, mtuSize), make([]byte, mtuSize)
	b[0] = byte('0' + mine)
	if err := t.swap(b, theirs); err != nil {
		return 0, err
	}
	if theirs[0] < '0' || theirs[0] > '9' {
		return 0, errors.New("the peer's path MTU is no number: is it the same program?")
	}
	return int(theirs[0] - '0'), nil
}

// swapReport exchanges the results of a bandwidth test.
func (t *talk) swapReport(mine *bwReport) (theirs bwReport, err error) {
	words := []uint64{uint64(mine.size), uint64(mine.iters),
		math.Float64bits(mine.peak), math.Float64bits(mine.average), math.Float64bits(mine.rate)}
	var b [8]byte
	for i, w := range words {
		if err := t.swap(binary.BigEndian.AppendUint64(nil, w), b[:]); err != nil {
			return bwReport{}, err
		}
		words[i] = binary.BigEndian.Uint64(b[:])
	}
	return bwReport{size: int(words[0]), iters: int64(words[1]),
		peak: math.Float64frombits(words[2]), average: math.Float64frombits(words[3]), rate: math.Float64frombits(words[4])}, nil
}
