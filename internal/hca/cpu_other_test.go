//go:build !unix

package hca

import "time"

// processCPU is not known here.
func processCPU() time.Duration { return 0 }
