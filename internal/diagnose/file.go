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
	in, err := capture.NewReader(r)
	if err != nil {
		return nil, errors.Join(ErrUnreadable, err)
	}
	a := New(o)
	for {
		f, err := in.Next()
		switch {
		case err == nil:
			a.Frame(f)
			continue
		case errors.Is(err, io.EOF):
			return a.Report(), nil
		case a.count.frames == 0:
			return nil, errors.Join(ErrUnreadable, err)
		}
		a.Broken(err)
		return a.Report(), nil
	}
}
