//go:build !linux

package mem

import "github.com/adverb-rdma/adverb/verbs"

// reserve would return addresses behind which there is no memory.
func reserve(int) ([]byte, error) {
	return nil, verbs.Errorf(verbs.ErrUnsupported, "memory of other processes is reached on Linux only")
}

func unreserve([]byte) error { return nil }
