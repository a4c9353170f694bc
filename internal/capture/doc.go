// Package capture reads captures of RDMA traffic, of any sender: a [Reader] takes frames out of pcap and pcapng files,
// gzip included, and a [Decoder] finds the RoCE packet in a frame. It knows Ethernet with VLANs, raw IP, Linux's cooked
// captures, loopback and ERF, and looks into the tunnels by which switches mirror traffic: VXLAN, Geneve, GRE, ERSPAN
// and IP in IP. Frames may be cut short.
//
// Captures come from strangers: no file makes the package panic, hang or take more memory than a bounded amount.
// Nothing is allocated for a frame, and a file is read once from its beginning, so that it may be a pipe.
package capture
