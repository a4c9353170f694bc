//go:build adverb_native

package main

import _ "github.com/adverb-rdma/adverb/provider/native" // the kernel's devices: mlx5_0, rxe0 and so on
