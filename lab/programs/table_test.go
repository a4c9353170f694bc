package programs

// A family is the rows of one package.
type family struct {
	name string // the package
	rows []row
}

// row is a program with arguments: a line of docs/RUN.md.
type row struct {
	program string
	env     string // variables, by spaces
	args    string
	// port is where a server listens on TCP before its client starts. 0 means that there is one program alone.
	port int
	// client are the client's arguments after the server's address.
	client string
	// stays says that the server serves until the server is killed.
	stays bool
	// tool is the command of adverb that takes each end's place in turn, if there is one.
	tool string
	// until is output after which the program is killed.
	until string
	// fails says that each program exits with a status other than 0.
	fails bool
	// prints is text that the client, or the program that is alone, prints. Of two that fail, where the server stays, either may.
	prints string
	// leaves are files that the program leaves, by a fault of its own.
	leaves string
	// note names the row's need, or says why the row is refused.
	note string
}

// packages are those of the families, and those that the families' scripts need.
var packages = []string{
	"bash", "coreutils", "dash", "iproute2",
	"ibverbs-utils", "perftest", "python3-pyverbs", "libfabric-bin", "ucx-utils", "openmpi-bin", "python3-mpi4py", "qperf",
}

// Where programs listen.
const (
	pingpong = 18515 // ibv_*_pingpong and perftest
	ucx      = 13337
	fabric   = 47592
	qperf    = 19765
)

const (
	noXRC = "no XRC, as rxe"
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
		{program: "ib_write_bw", args: "-d rxe_eth0 -c XRC", port: pingpong, fails: true, leaves: xrcFiles, note: noXRC},
	}},
	{"libfabric-bin", []row{
		{program: "fi_info", args: "-p verbs", prints: "rxe_eth0-dgram"},
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
	{"qperf", []row{
		{program: "qperf", port: qperf, stays: true, client: "-t 1 rc_lat", fails: true, prints: "RTR", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 uc_bw", fails: true, prints: "RTR", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 ud_lat", fails: true, prints: "address handle", note: noGRH},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 -cm 1 rc_lat rc_bw rc_rdma_write_bw", prints: "latency"},
		{program: "qperf", port: qperf, stays: true, client: "-t 1 tcp_lat udp_lat", prints: "latency", note: "sockets, which pass untouched"},
	}},
}

// xrcFiles are the files that programs leave that found no XRC.
const xrcFiles = tmp + "xrc_domain " + tmp + "xrc_domain_client " + tmp + "xrc_domain_server"

const tmp = "/tmp" + "/"

const udTells = "UCX takes a datagram of IPv4 only if its completion tells of the header, as ConnectX's does"
