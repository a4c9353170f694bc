package mem

import "github.com/adverb-rdma/adverb/verbs"

// ScatterLate is Scatter for bytes that come after others which should have followed them. It leaves the memory of
// those, kept, as it is.
func (p *PD) ScatterLate(sg []verbs.SGE, off uint32, src []byte, kept []Span) error {
	for i := range sg {
		if len(src) == 0 {
			return nil
		}
		s, n, err := p.openSGE(nil, sg, i, &off, len(src), verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		if n > 0 {
			err := s.placeLate(src[:n], kept)
			s.Release()
			if err != nil {
				return err
			}
			src = src[n:]
		}
	}
	return nil
}

// placeLate copies src to the beginning of the span, except for the bytes that are in kept too.
func (s Span) placeLate(src []byte, kept []Span) error {
	for len(src) > 0 {
		skip, n := 0, len(src)
		for _, k := range kept {
			if from := int64(addrOf(k.Bytes()) - addrOf(s.Bytes())); from <= 0 {
				skip = max(skip, int(min(from+int64(len(k.Bytes())), int64(n))))
			} else {
				n = int(min(from, int64(n)))
			}
		}
		if skip > 0 {
			n = min(skip, len(src))
		} else {
			tellWrite(s.Bytes()[:n])
			if err := s.PlaceShared(src[:n]); err != nil {
				return err
			}
		}
		s, src = s.from(n), src[n:]
	}
	return nil
}
