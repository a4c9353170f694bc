package main

import _ "github.com/adverb-rdma/adverb/provider/soft" // soft_lo, soft_eth0 and so on
