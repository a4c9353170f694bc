// Package handover hands descriptors over between processes of one user and one host: messages of a fixed size with
// descriptors (SCM_RIGHTS), over connections of unix sockets. The kernel proves who is at the other end. Package lanes
// hands memory over this way, and package host hands wills over.
//
// Only Linux has such sockets.
package handover
