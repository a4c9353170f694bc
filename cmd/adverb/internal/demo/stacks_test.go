package demo

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The packets of the four that have InfiniBand's transport are the same from the BTH to the data, and the headers that are
// drawn are all that there is.
func TestStacks(t *testing.T) {
	s := &stage{w: io.Discard, quiet: true, rng: rand.New(rand.NewPCG(sceneSeed, 0))}
	var stacks []stack
	var transports [][]byte
	err := s.perform(flags{}, (*stage).onEthernet, func(s *stage) {
		v2, v1 := s.carry(stacksText), s.beside(stacksText, (*stage).onRoCEv1)
		near, far := s.beside(stacksText, (*stage).onInfiniBand), s.beside(stacksText, (*stage).acrossRouter)
		for _, b := range [][]byte{v2[ipv4Size+udpSize:], v1[etherSize+wire.GRHSize:], bthOf(near[:len(near)-wire.VCRCSize]), bthOf(far[:len(far)-wire.VCRCSize])} {
			transports = append(transports, b[:len(b)-wire.ICRCSize])
		}
		stacks = []stack{s.infiniBandStack("", near), s.infiniBandStack("", far), s.roceV1Stack(v1), s.roceV2Stack(v2), s.iwarpStack(s.onIWARP(stacksText))}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for i, b := range transports {
		if !bytes.Equal(b, transports[0]) || !bytes.HasSuffix(b, []byte(stacksText)) {
			t.Errorf("packet %d is %x from the BTH on, want %x", i, b, transports[0])
		}
	}
	for i, st := range stacks {
		sum := 0
		for part := range numParts {
			for _, l := range st.layers[part] {
				sum += l.size
			}
		}
		if sum != st.size {
			t.Errorf("packet %d: headers of %d bytes are drawn, and it has %d", i, sum, st.size)
		}
	}
	if _, ok := wire.CutVCRC(s.beside(stacksText, (*stage).acrossRouter)); !ok {
		t.Error("the VCRC is wrong")
	}
}
