package programs

import "strings"

// A family is the rows of one package.
type family struct {
	name string // the package
	rows []row
}

// row is a program with arguments: a line of docs/RUN.md. In arguments ADDR stands for the address of eth0.
type row struct {
	program string
	env     string // variables, by spaces
	args    string // of both ends
	// server are the server's own arguments.
	server string
	// port is where a server listens on TCP before its client starts. cm is where a server listens by the connection
	// manager. ready is printed by a server before its client starts. Without all three there is one program alone.
	port, cm int
	ready    string
	// peer is the client, if the client is another program.
	peer string
	// client are the client's own arguments. The server's address comes before them, unless they have ADDR.
	client string
	// clients is how many clients the server has, if not one. All of them run at once if the server is our tool.
	clients int
	// early are words by which the client says that it came too early: perftest's server ends its first listener, for the
	// connection by which both ends agree, and begins a second one for that of the data. Its client does not wait for that. On a
	// busy machine the client may be first, as with a card. Such a pair is run again.
	early string
	// stays says that the server serves until the server is killed.
	stays bool
	// tool is the command of adverb that takes each end's place in turn, if there is one.
	tool string
	// toolServer are arguments that our tool needs as a server, beside those of the program.
	toolServer string
	// until is output after which the program is killed.
	until string
	// fails says that each program exits with a status other than 0.
	fails bool
	// prints is text that the client, or the program that is alone, prints. Of two that fail, where the server stays, either may.
	prints string
	// leaves are files that the program leaves, by a fault of its own, or since that is its work.
	leaves string
	// copyOf is the file that leaves is a copy of.
	copyOf string
	// note names the row's need, or says why the row is refused.
	note string
}

// pair reports whether a row has a server and a client.
func (r row) pair() bool { return r.port != 0 || r.cm != 0 || r.ready != "" }

// packages are those of the families, and those that the families' scripts need.
var packages = []string{
	"bash", "coreutils", "dash", "iproute2", "libibverbs-dev", "libnl-3-dev", "libnl-route-3-dev",
	"ibverbs-utils", "perftest", "python3-pyverbs", "libfabric-bin", "ucx-utils", "openmpi-bin", "python3-mpi4py", "qperf",
	"rdmacm-utils", "fio", "dapl2-utils", "mpich",
}

// Where programs listen.
const (
	pingpong = 18515 // ibv_*_pingpong and perftest
	ucx      = 13337
	fabric   = 47592
	qperf    = 19765
	dtest    = 15828
	cm       = 7471 // the programs of rdmacm-utils, if they have no other
	rping    = 7174
	rcopy    = 7427
	fio      = 7890
)

const (
	noXRC = "no XRC, as rxe"
	noLID = "rsockets of datagrams know their own device by a LID, which no RoCE device has"
	oneID = "a server in C mixes up clients that come at the same time, so they come one after the other"
	noGRH = "asks for a path without a GID, which no RoCE device has: use `-cm 1`"
	rcUCX = "UCX_TLS=rc_verbs,ud_verbs:aux UCX_NET_DEVICES=rxe_eth0:1"
	udUCX = "UCX_TLS=ud_verbs UCX_NET_DEVICES=rxe_eth0:1"
)

// c returns a row of a classic program, as which our tool has one.
func c(program, args, tool string) row {
	return row{program: program, args: "-d rxe_eth0 " + args, port: pingpong, tool: tool}
}

// p is c for perftest. Without -F its programs end with "Can't produce a report" where a busy processor's clock seems
// uneven.
func p(program, args, tool string) row { return c(program, "-F "+args, tool) }

// r is a row for perftest whose ends find each other by the connection manager.
func r(program, args, tool string) row {
	early := "RDMA_CM_EVENT_REJECTED; error: 8" // nobody listens
	if strings.Contains(args, "-c UD") {
		early = "RDMA_CM_EVENT_UNREACHABLE; error: 1"
	}
	return row{program: program, args: "-d rxe_eth0 -F " + args, cm: pingpong, tool: tool, early: early}
}

// m returns a row of rdmacm-utils.
func m(program, args, tool string) row {
	return row{program: program, args: args, server: "-b ADDR", client: "-s ADDR", cm: cm, tool: tool}
}

var table = []family{
	{"ibverbs-utils", []row{
		{program: "ibv_devices", prints: "rxe_eth0"},
		{program: "ibv_devinfo", args: "-v", prints: "PORT_ACTIVE"},
		{program: "stdbuf", args: "-oL ibv_asyncwatch -d rxe_eth0", until: "async event FD", note: "watches until it is killed"},
		c("ibv_rc_pingpong", "-g 0", "rc_pingpong"),
		c("ibv_rc_pingpong", "-g 0 -c -n 10000", "rc_pingpong"),
		c("ibv_rc_pingpong", "-g 0 -e -s 1048576 -n 100", "rc_pingpong"),
		c("ibv_rc_pingpong", "-g 0 -N", ""),
		{program: "ibv_rc_pingpong", args: "-d rxe_eth0 -g 0 -t", fails: true, prints: "timestamp", note: "no time stamps of completions, as rxe"},
		c("ibv_rc_pingpong", "-g 0 -o -c", ""),
		c("ibv_uc_pingpong", "-g 0", "uc_pingpong"),
		c("ibv_uc_pingpong", "-g 0 -c -e -n 10000", "uc_pingpong"),
		c("ibv_ud_pingpong", "-g 0", "ud_pingpong"),
		c("ibv_ud_pingpong", "-g 0 -c -e -n 10000", "ud_pingpong"),
		c("ibv_srq_pingpong", "-g 0", "srq_pingpong"),
		c("ibv_srq_pingpong", "-g 0 -c -e -n 10000", "srq_pingpong"),
		{program: "ibv_xsrq_pingpong", args: "-d rxe_eth0 -g 0", fails: true, leaves: xrcFiles, note: noXRC},
	}},
	{"perftest", []row{
		p("ib_write_bw", "-a -n 5", "write_bw"),
		p("ib_write_lat", "-a -n 5", "write_lat"),
		p("ib_read_bw", "-a -n 5", "read_bw"),
		p("ib_read_lat", "-a -n 5", "read_lat"),
		p("ib_send_bw", "-a -n 5", "send_bw"),
		p("ib_send_lat", "-a -n 5", "send_lat"),
		p("ib_atomic_bw", "-n 1000", "atomic_bw"),
		p("ib_atomic_bw", "-A CMP_AND_SWAP -n 1000", "atomic_bw"),
		p("ib_atomic_lat", "-n 1000", "atomic_lat"),
		p("ib_write_bw", "-c UC -n 1000", "write_bw"),
		p("ib_send_bw", "-c UC -s 1024 -n 500 -r 512", "send_bw"), // no more than the receiver has room for
		p("ib_send_lat", "-c UC -n 1000", "send_lat"),
		p("ib_send_bw", "-c UD -n 500 -r 512", "send_bw"),
		p("ib_send_lat", "-c UD -n 1000", "send_lat"),
		p("ib_write_bw", "-q 4 -n 1000", "write_bw"),
		p("ib_read_bw", "-q 4 -n 1000", "read_bw"),
		p("ib_send_bw", "-e -n 1000", "send_bw"),
		p("ib_send_lat", "-e -n 1000", "send_lat"),
		p("ib_send_bw", "--use-srq -q 4 -n 1000", ""),
		p("ib_send_bw", "-b -n 1000", ""),
		p("ib_write_bw", "-b -n 1000", ""),
		p("ib_write_lat", "-I 64 -s 64 -n 1000", ""),
		p("ib_send_bw", "-D 1", ""),
		p("ib_write_bw", "-D 1 -q 2", ""),
		p("ib_send_bw", "-m 1024 -Q 10 -n 1000", ""),
		p("ib_send_bw", "--retry_count=5 -u 16 -n 1000", ""),
		r("ib_send_bw", "-z -n 1000", ""),
		r("ib_write_bw", "-R -n 1000", "write_bw"),
		r("ib_write_bw", "-R -q 4 -n 1000", "write_bw"),
		r("ib_read_bw", "-R -n 1000", "read_bw"),
		r("ib_send_lat", "-R -n 1000", "send_lat"),
		r("ib_atomic_lat", "-R -n 1000", "atomic_lat"),
		r("ib_send_bw", "-R -c UD -n 500 -r 512", "send_bw"),
		r("ib_send_lat", "-R -c UD -n 1000", "send_lat"),
		{program: "ib_write_bw", args: "-d rxe_eth0 -c XRC", port: pingpong, fails: true, leaves: xrcFiles, note: noXRC},
	}},
	{"libibverbs-dev", []row{
		{program: staticPath, args: "rxe_eth0", prints: "written by a static program", note: "lab/programs/testdata/static.c with libibverbs.a and no dynamic loader"},
	}},
	{"rdmacm-utils", []row{
		{program: "rping", server: "-s -a ADDR", client: "-c -a ADDR -C 100 -V -S 4096", args: "-S 4096", cm: rping, tool: "rping"},
		{program: "rping", server: "-s -P -a ADDR", client: "-c -a ADDR -C 50 -V", clients: 8, cm: rping, stays: true, tool: "rping", note: oneID},
		m("ucmatose", "", "cmatose"),
		m("ucmatose", "-c 8 -C 20 -S 4000", "cmatose"),
		m("ucmatose", "-P ib -m", ""),
		m("udaddy", "", "udaddy").at(rping),
		m("udaddy", "-c 4 -C 20 -S 512", "udaddy").at(rping),
		{program: "mckey", args: "-m 239.1.2.3 -b ADDR -c 2 -C 5", ready: "receiving data transfers", client: "-s", tool: "mckey"},
		{program: "mckey", args: "-m ff12::7 -b fd00:5::1", ready: "receiving data transfers", client: "-s"},
		m("cmtime", "", "cmtime").served(),
		m("rdma_server", "", "").from("rdma_client"),
		m("rdma_xserver", "-c r", "").from("rdma_xclient"),
		{program: "rdma_xserver", args: "-c x", fails: true, prints: "Operation not supported", note: noXRC},
		m("rstream", "-S 65536 -C 10 -I 10 -T v", ""),
		m("rstream", "-S 1000000 -C 5 -I 2 -T n", ""),
		m("riostream", "-S 65536 -C 10 -I 10 -T v", ""),
		m("riostream", "-S 1000000 -C 5 -I 2 -T a", ""),
		{program: "rcopy", client: "/run/suite.py ADDR:/dev/shm/copy", cm: rcopy, stays: true, tool: "rcopy", toolServer: "--into /", leaves: "/dev/shm/copy", copyOf: "/run/suite.py"},
		{program: "udpong", args: "-s ADDR", fails: true, prints: "rconnect", note: noLID},
	}},
	{"libfabric-bin", []row{
		{program: "fi_info", args: "-p verbs", prints: "rxe_eth0-dgram"},
		{program: "fi_pingpong", args: "-p verbs -e msg -d rxe_eth0", port: fabric, prints: "=10"},
		{program: "fi_pingpong", args: "-p verbs;ofi_rxm -e rdm -d rxe_eth0 -c", port: fabric, prints: "=10"},
		{program: "fi_pingpong", args: "-p verbs;ofi_rxd -e rdm -d rxe_eth0-dgram", port: fabric, prints: "=10"},
		{program: "fi_pingpong", args: "-p verbs -e dgram -d rxe_eth0-dgram", port: fabric, prints: "=10"},
	}},
	{"ucx-utils", []row{
		{program: "ucx_info", args: "-d", prints: "rc_verbs"},
		{program: "ucx_perftest", env: rcUCX, port: ucx, client: "-t tag_lat -n 1000", prints: "Final:", note: udTells},
		{program: "ucx_perftest", env: rcUCX, port: ucx, client: "-t tag_bw -n 100 -s 300000", prints: "Final:"},
		{program: "ucx_perftest", env: rcUCX, port: ucx, client: "-t ucp_put_bw -n 1000", prints: "Final:"},
		{program: "ucx_perftest", env: rcUCX, port: ucx, client: "-t ucp_get -n 1000", prints: "Final:"},
		{program: "ucx_perftest", env: rcUCX, port: ucx, client: "-t ucp_fadd -n 1000", prints: "Final:"},
		{program: "ucx_perftest", env: udUCX, port: ucx, client: "-t tag_lat -n 1000", prints: "Final:"},
		{program: "ucx_perftest", env: udUCX, port: ucx, client: "-t tag_bw -n 10 -s 300000", prints: "Final:"},
		{program: "ucx_perftest", env: udUCX, port: ucx, client: "-t ucp_am_bw -n 1000", prints: "Final:"},
	}},
	{"openmpi-bin", []row{
		{program: "mpirun.openmpi", args: "--oversubscribe -n 4 --mca pml ucx -x UCX_TLS=rc,self -x UCX_NET_DEVICES=rxe_eth0:1 python3 /run/ranks.py", prints: "4 ranks agree", note: "a supervisor for all ranks"},
		{program: "mpirun.openmpi", args: "--oversubscribe -n 4 --mca pml ucx -x UCX_TLS=ud,self -x UCX_NET_DEVICES=rxe_eth0:1 python3 /run/ranks.py", prints: "4 ranks agree"},
		{program: "mpirun.openmpi", args: "--oversubscribe -n 4 --mca pml ob1 --mca btl openib,self --mca btl_openib_allow_ib 1 python3 /run/ranks.py", fails: true, note: "the connection scheme udcm of openib is for InfiniBand links alone"},
	}},
	{"mpich", []row{
		{program: "mpirun.mpich", env: "UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_NET_DEVICES=rxe_eth0:1", args: "-n 2 mpivars", prints: "MPI"},
	}},
	{"fio", []row{
		f("--verb=write", "--verb=write --iodepth=16"),
		f("--verb=read", "--verb=read --iodepth=4"),
		{program: "fio", args: "--name=s --ioengine=rdma --hostname=ADDR --port=7890 --size=4m --rw=randwrite --verb=write", fails: true, prints: "can't be random", note: "the engine's own limit"},
		{program: "fio", args: "--name=s --ioengine=rdma --hostname=ADDR --port=7890 --size=4m --rw=rw --verb=write", fails: true, prints: "must be read OR write", note: "the engine's own limit"},
	}},
	{"dapl2-utils", []row{
		d("dtest", "-P rxe-cma"),
		d("dtestx", "-P rxe-cma"),
	}},
	{"qperf", []row{
		{program: "qperf", port: qperf, stays: true, client: "-t 1 rc_lat", fails: true, prints: "RTR", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 uc_bw", fails: true, prints: "RTR", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 ud_lat", fails: true, prints: "address handle", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 -cm 1 rc_lat rc_bw rc_rdma_write_bw", prints: "latency"},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 tcp_lat udp_lat", prints: "latency", note: "sockets, which pass untouched"},
	}},
}

// f returns a row of fio's engine rdma: its server is a job that reads.
func f(server, client string) row {
	return row{program: "fio", args: "--ioengine=rdma --port=7890 --bs=64k --size=16m", server: "--name=r --rw=read " + server,
		client: "--name=s --rw=write --hostname=ADDR " + client, cm: fio, prints: "err= 0"}
}

// d returns a row of uDAPL.
func d(program, args string) row {
	return row{program: program, env: "DAT_OVERRIDE=/run/dat.conf", args: args, client: "-h ADDR", port: dtest}
}

// at returns the row with another port.
func (r row) at(port int) row { r.cm = port; return r }

// served returns the row with a server that stays.
func (r row) served() row { r.stays = true; return r }

// from returns the row with another program as the client.
func (r row) from(peer string) row { r.server, r.peer = "", peer; return r }

// xrcFiles are the files that programs leave that found no XRC.
const xrcFiles = tmp + "xrc_domain " + tmp + "xrc_domain_client " + tmp + "xrc_domain_server"

const tmp = "/tmp" + "/"

// staticPath is a program in C that has libibverbs in itself, in the tree.
const staticPath = "/run/static"

const udTells = "UCX takes a datagram of IPv4 only if its completion tells of the header, as ConnectX's does"
