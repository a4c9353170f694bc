//go:build !linux || !(amd64 || arm64)

package run

import "github.com/adverb-rdma/adverb/internal/supervisor"

// Serve is never called here.
func Serve(*supervisor.Session) error { return nil }
