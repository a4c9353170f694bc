module github.com/adverb-rdma/adverb/examples

go 1.26.0

require github.com/adverb-rdma/adverb v0.0.0

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/gopacket/gopacket v1.7.5 // indirect
	github.com/mdlayher/netlink v1.11.2 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/adverb-rdma/adverb => ../
