// Package whole simulates whole systems in its tests: devices on a bad network, their queue pairs and
// connection managers, and programs that post random work. The package has no code outside its tests.
//
// A run is determined by its plan, and the plan by a seed. One goroutine does everything, by the clock of
// a synctest bubble: devices are driven ([hca.Config.Driven]), the connection managers are machines
// without a clock, and the random numbers of QPNs and keys come from the seed too. So a failure replays
// exactly:
//
//	go test ./internal/whole -run Whole -args -seed 17
//
// A failure prints its seed and the commit. The failure is then shrunk: the plan loses every part that the
// failure does not need, and the run of the last plan is printed as a trace, with a capture of all packets. The flag
// -plan makes the run of a plan that a failure has printed.
//
//	plan    the contents of a run: nodes, connections, work, faults of the network and of nodes, forgeries
//	world   the clock, the agenda, the loop
//	node    a device with its memory, and the program's turns: the node may pause, crash and come back
//	conn    two ends that are introduced by hand or by the connection manager, once or several times
//	end     a queue pair, its posted work, and the results that the work must have
//	region  registered memory, some of which is registered anew, also in another PD, or given by windows
//	station packets of a hostile station that also knows communication IDs, and the QPNs of UD
//	queues  completion queues: some are too small, also those of UD QPs, and of some the programs wait for the event
//	shared  receives from SRQs, of which some are lost with their completions
//	spread  ends that send from several ports, networks of several ways, and nodes that lose packets from a port
//	paced   ends with a congestion control, which they change
//	xrc     initiators, and targets that share SRQs
//	place   FLUSHes and ATOMIC WRITEs
//
// The tests check the promises of verbs, not the behaviour of the stack: see oracle_test.go. All ends trust
// nobody, so forged packets of a hostile station must change nothing. Forged packets have the right addresses, QPNs
// and keys, and any PSN but those that RoCE cannot tell from genuine ones. Connections with packet security get forged
// packets with those PSNs too, and packets that were sent before; no packet between QPs with packet security is plain.
// The station sends the connection managers messages with communication IDs of living connections: only messages that
// have all numbers right may end a connection. The station also sends packets that RoCEv2 leaves open: to UD,
// datagrams with the right Q_Key, and to UC, messages from the peer's address and port. Such a UC message may arrive
// if the message begins properly, and its WRITEs change the memory that they have a key for. UC messages from
// elsewhere, or with a flaw, change nothing: see forgeduc_test.go.
package whole
