// Package ibv calls libibverbs, which it loads at run time: no cgo, and nothing of rdma-core is needed to build.
//
// C knows addresses alone, and Go moves its stacks. So no address of Go's memory reaches C: arguments are [Ref], which
// only this package makes, of memory that C has returned or that this package has mapped. The one exception is the memory
// that [Lib.RegMR] registers. Its caller pins it.
//
// On Linux with amd64 or arm64 the package has what it describes. Elsewhere it is empty.
package ibv
