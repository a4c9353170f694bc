// Package uapi has the structures by which programs talk to Linux's RDMA drivers: the commands that libibverbs writes to
// /dev/infiniband/uverbsN, those that librdmacm writes to /dev/infiniband/rdma_cm, and the work queues that a program shares
// with the driver rdma_rxe. Of uverbs the package plays the kernel's side: it decodes commands and encodes responses. Of
// rdma_cm it has both sides: internal/connector writes the commands, too.
//
//	command.go   a command of uverbs, by write or by ioctl, as a number with input and room for output
//	uverbs.go    the commands of uverbs for devices, memory and CQs: linux/include/uapi/rdma/ib_user_verbs.h
//	queues.go    the commands for QPs, AHs and SRQs, and completions
//	ucma.go      the commands of rdma_cm: rdma_user_cm.h
//	cmevents.go  the events of rdma_cm
//	sockaddr.go  the addresses in those commands and in their responses
//	rxe.go       queues, work queue elements and responses of rdma_rxe: rdma_user_rxe.h
//
// The names are those of the headers: ib_uverbs_reg_mr is RegMR, and its field hca_va is HCAVA. A test compares sizes and
// offsets with the headers that are installed. Numbers have the byte order of the machine, but for those that the headers
// call __be.
//
// What comes from a program is checked here for its length alone.
package uapi
