// Package lab puts adverb on a network with Linux's own RDMA stack.
//
// A [Lab] is a network of guests. Guests are virtual machines that run rdma-core's programs and
// Debian's kernel, with one of its software RDMA devices: rxe (RoCEv2) or siw (iWARP). The network
// is a bridge in a network namespace of its own. The test process moves into that namespace
// ([Enter]), so programs on either side reach each other by address.
//
// The lab installs nothing. The lab takes the files that it needs from Debian's packages: apt-get
// downloads and verifies the packages, and the lab unpacks the packages into a cache. QEMU runs from
// that cache. The guests see the cache as their root file system, read-only. Only the cache outlives
// the process: the namespace and everything inside belong to the process, and the kernel kills the
// guests when the process ends.
//
// The lab runs on Linux, as root. README.md beside this file says how to use it.
package lab
