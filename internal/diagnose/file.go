package diagnose

import (
	"errors"
	"io"

	"github.com/adverb-rdma/adverb/internal/capture"
)

// ErrUnreadable is wrapped by the error of a file of which not one frame could be read.
var ErrUnreadable = errors.New("not readable as a capture")

// File diagnoses a capture. The error is why no frame could be read. If a file is damaged further on, the report says so.
func File(r io.Reader, o Options) (*Report, error) {
	a := New(o)
	return a.Result(Frames(r, a.Frame))
}

// Frames hands the frames of a capture to take, one by one. The error is nil at the capture's end.
func Frames(r io.Reader, take func(capture.Frame)) error {
	in, err := capture.NewReader(r)
	if err != nil {
		return err
	}
	for {
		f, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && in.Lost() > 0:
			return lostError(in.Lost())
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		take(f)
	}
}

// lostError is the number of frames for which the capturing program had no room. It is no failure.
type lostError int

func (e lostError) Error() string { return words("%d frames are missing", int(e)) }

// Result ends the analysis of a capture that was read up to an error of [Frames], and returns its result.
func (a *Analyzer) Result(err error) (*Report, error) {
	if lost, ok := errors.AsType[lostError](err); ok {
		a.Lost(int(lost))
		err = nil
	}
	if err != nil {
		if a.count.frames == 0 {
			return nil, errors.Join(ErrUnreadable, err)
		}
		a.Broken(err)
	}
	return a.Report(), nil
}
