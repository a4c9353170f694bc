//go:build !linux || adverb_portable

package mem

import "github.com/adverb-rdma/adverb/verbs"

const canPersist = false

func persistent([]byte) error {
	return verbs.Errorf(verbs.ErrUnsupported, "%v: software devices have it on Linux alone", verbs.AccessFlushPersistent)
}

func syncFile([]byte) error { return verbs.ErrUnsupported }
