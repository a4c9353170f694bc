// Package lab puts adverb on a network with Linux's own RDMA stack.
//
// A [Lab] is a network with guests: virtual machines that run rdma-core's programs and Debian's kernel with one of its
// software RDMA devices, rxe (RoCEv2) or siw (iWARP). The test process lives in the same network, which is a bridge in a
// network namespace of its own ([Enter]), so that programs on either side reach each other by address.
//
// Nothing is installed. What the lab needs it takes from Debian's packages, which apt-get downloads by
// name and verifies, and unpacks them into a cache. QEMU runs out of that cache too, and the guests
// see it, read-only, as their root file system. Nothing outlives the process but that cache: the
// namespace and all that is in it belong to the process, and the kernel kills the guests when it ends.
//
// The lab runs on Linux, as root. README.md beside this file says how to use it.
package lab
