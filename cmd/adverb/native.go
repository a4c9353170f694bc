//go:build adverb_native

package main

// The kernel's devices, such as cards. It makes the tool dynamic, which then needs glibc to start.
import _ "github.com/adverb-rdma/adverb/provider/native"
