module github.com/adverb-rdma/adverb

go 1.26.0

require (
	github.com/gopacket/gopacket v1.7.5
	github.com/mdlayher/netlink v1.11.2
	github.com/spf13/cobra v1.10.2
	golang.org/x/net v0.62.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/mdlayher/socket v0.6.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	golang.org/x/sync v0.20.0 // indirect
)
