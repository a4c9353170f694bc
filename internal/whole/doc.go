// Package whole is a simulation of whole systems, which its tests run: devices on a bad network, their
// queue pairs and connection managers, and programs that post random work. It has no code of its own.
//
// A run is determined by its plan, and the plan by a seed. One goroutine does everything, by the clock of
// a synctest bubble: devices are driven ([hca.Config.Driven]), the connection managers are machines
// without a clock, and the random numbers of QPNs and keys come from the seed too. So a failure replays
// exactly:
//
//	go test ./internal/whole -run Whole -args -seed 17
//
// A failure prints its seed and the commit. It is then shrunk: the plan loses what the failure does not
// need, and the run of the last plan is printed as a trace, with a capture of all packets. -plan makes the run of a
// plan, as failures print it.
//
//	plan    what there is: nodes, connections, work, faults of the network and of nodes, forgeries
//	world   the clock, the agenda, the loop
//	node    a device with its memory, and the program's turns: it may pause, crash and come back
//	conn    two ends that are introduced by hand or by the connection manager, once or several times
//	end     a queue pair, what it has posted, and what must come of it
//	region  registered memory, some of which is registered anew, also in another PD, or given by windows
//	station what a hostile station sends that knows more
//	queues  completion queues: some are too small, also those of UD QPs, and of some the programs wait for the event
//	shared  receives from SRQs, of which some are lost with their completions
//	spread  ends that send from several ports, networks of several ways, and nodes that lose what comes from a port
//	paced   ends with a congestion control, which they change
//
// What is checked is what verbs promise, not what the stack does: see oracle_test.go. All ends trust
// nobody, so what a hostile station forges must change nothing. Its packets have the right addresses, QPNs
// and keys, and any PSN but those that RoCE cannot tell from genuine ones. Connections with packet security get those
// too, and packets that were sent before; no packet between such QPs is plain. It sends the connection managers
// messages with communication IDs of living connections: only those that have all numbers right may end one. And it
// sends what RoCEv2 leaves open: to UD, datagrams with the right Q_Key, and to UC, messages from the peer's address
// and port, which may arrive if they begin properly, and whose WRITEs change what they have a key for. From
// elsewhere, or with a flaw, they change nothing: see forgeduc_test.go.
package whole
