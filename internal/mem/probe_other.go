//go:build !linux || adverb_portable

package mem

import "github.com/adverb-rdma/adverb/verbs"

// probe returns an error if the program's memory does not allow all of access. See probe.go.
func probe(b []byte, access verbs.Access) error { return sample(b, access) }
