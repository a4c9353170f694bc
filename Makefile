# make test is for each commit, make check is all that needs no root, and CI runs both, and make lab. CONTRIBUTING.md
# explains the targets.

GO       ?= go
FUZZTIME ?= 60s
# How often a failing input, or one that reaches something new, is made smaller. By default Go takes a minute for each.
FUZZLESS ?= 1000x
BENCH    ?= .
SIMTIME  ?= 1m
SIMFIRST ?= 0
SIMJOBS  ?= 1
# Systems beside this one on which the module must build, vet and have tests that compile.
CROSS    ?= darwin windows freebsd
# Processors of 32 bits, on which it must do so too.
CROSS32  ?= 386 arm

.PHONY: test check fmt tidy vet lint floors cross bits32 race portable nocgo modules examples lab fuzz fuzz-short sim mutants bench

# The tests without those that take long, and what is quick to look at. make check has the rest.
test: fmt
	$(GO) vet ./...
	CGO_ENABLED=0 $(GO) test -short ./...

# From the quickest to fail to the slowest, one after the other even under -j. A check that fails hides no other: all run,
# and the end names those that failed.
CHECKS ?= fmt tidy vet lint floors cross bits32 arm64 race portable nocgo modules examples report pages fuzz-short release-dry litmus sim
check:
	@failed= times=; for step in $(CHECKS); do \
		echo "== $$step"; begin=$$(date +%s); \
		$(MAKE) --no-print-directory $$step || failed="$$failed $$step"; \
		took=$$(($$(date +%s) - begin)); times="$$times $$step $$took,"; \
		echo "== $$step: $$took s"; \
	done; \
	echo "check: seconds:$${times%,}"; \
	test -z "$$failed" || { echo "check: failed:$$failed"; exit 1; }

# Names them.
.PHONY: checks
checks:
	@echo $(CHECKS)

fmt:
	@out=$$(gofmt -l .) || exit 1; test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }

tidy:
	$(GO) mod tidy -diff

vet:
	$(GO) vet ./...

# tools/ is a module of its own, so that users of adverb do not get staticcheck's dependencies.
lint:
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

# Where imports may point, what the pure packages may use, file lengths, sleeping tests, no wall clock, and
# what docs/CONFORMANCE.md and docs/SECURITY.md cite.
floors:
	CGO_ENABLED=0 $(GO) test .

# Writes api/next.txt, which has each name that packages export. What it changes is what users see.
.PHONY: api
api:
	CGO_ENABLED=0 $(GO) test -count=1 -run '^TestAPI$$' . -args -update

# go vet compiles all packages, and checks the types of their tests. make release links the tool.
cross:
	@for os in $(CROSS); do \
		echo "GOOS=$$os"; CGO_ENABLED=0 GOOS=$$os $(GO) vet ./... || exit 1; \
	done
	@for arch in $(CROSS32); do \
		echo "GOARCH=$$arch"; CGO_ENABLED=0 GOARCH=$$arch $(GO) vet ./... || exit 1; \
	done
	@echo "GOOS=js GOARCH=wasm"; CGO_ENABLED=0 GOOS=js GOARCH=wasm $(GO) vet ./internal/stage/...

# Where peers name numbers that an int of 32 bits makes negative. A processor of amd64 runs programs of 386.
.PHONY: bits32
bits32:
	@if [ "$$($(GO) env GOHOSTOS GOHOSTARCH | tr '\n' ' ')" = "linux amd64 " ]; then \
		CGO_ENABLED=0 GOARCH=386 $(GO) test -short ./internal/wire ./internal/capture ./internal/diagnose ./internal/mpa ./internal/iwarp ./internal/shm ./rdmaio ./rdmamsg ./rsocket; \
	else \
		echo "bits32: left out, since it needs a processor of amd64"; \
	fi

# Calls of C are made by assembly, which differs by processor, and structures of C are laid out in Go. So what drives cards runs
# as programs of arm64 too, with the fake library built for it. qemu keeps the order of amd64 for memory, so that no race shows.
ARM64_CC ?= aarch64-linux-gnu-gcc
ARM64_QEMU ?= qemu-aarch64
ARM64_ROOT ?= /usr/aarch64-linux-gnu
.PHONY: arm64
arm64:
	@if ! printf '#include <stdlib.h>\n' | $(ARM64_CC) -x c -fsyntax-only - 2>/dev/null || ! command -v $(ARM64_QEMU) >/dev/null; then \
		if [ "$$CI" = true ]; then \
			echo "arm64: no compiler or no qemu for it, and CI must not go without: install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user" >&2; exit 1; \
		fi; \
		echo "arm64: left out, since it needs a C compiler and qemu for arm64 (on Debian: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"; \
	else \
		CI= CC=$(ARM64_CC) CGO_ENABLED=0 GOARCH=arm64 $(GO) test -short -exec '$(ARM64_QEMU) -L $(ARM64_ROOT)' ./internal/ibv ./provider/native; \
	fi

# The race detector needs cgo, and so a C compiler with its headers. Its run is the short one: nocgo runs everything. Pure
# packages start no goroutine, as make floors finds out, nor do internal/whole and internal/stage: only tests of transport do, a few.
SEQUENTIAL = /internal/(transport|recovery|cm|iwarp|mpa|uapi|whole|stage)$$
race:
	@if printf '#include <stdlib.h>\n' | $$($(GO) env CC) -x c -fsyntax-only - 2>/dev/null; then \
		CGO_ENABLED=1 $(GO) test -race -short $$($(GO) list ./... | grep -vE '$(SEQUENTIAL)') && \
		CGO_ENABLED=1 $(GO) test -race -short -run 'TestMemoryIsLeft|TestLendHolds|TestLateReadKeepsLaterOnes|TestMemoryFault' ./internal/transport; \
	elif [ "$$CI" = true ]; then \
		echo "race: no C compiler, and CI must not go without: install gcc and libc6-dev" >&2; exit 1; \
	else \
		echo "race: left out, since it needs a C compiler (on Debian: apt install gcc libc6-dev)"; \
	fi

# What other systems use in place of the Linux code, tried here. An address then belongs to one process, so the packages
# that use the host's network go one after another. The tools' tests and those of verbs, which open an address more than
# once, are left out.
PORTABLE ?= ./rdmacm/... ./rdmapool ./rdmatest/... ./rdmaio ./rdmamsg ./rsocket ./provider/soft ./verbs/verbstest
portable:
	CGO_ENABLED=0 $(GO) vet -tags adverb_portable ./...
	CGO_ENABLED=0 $(GO) test -short -tags adverb_portable ./internal/...
	CGO_ENABLED=0 $(GO) test -short -p 1 -tags adverb_portable $(PORTABLE)

# All tests, with two processes of a host that talk by the network as if they were of two.
nocgo:
	CGO_ENABLED=0 ADVERB_SHM=0 $(GO) test ./...

# What would bring users of verbs dependencies that they do not ask for is a module of its own.
modules:
	cd adverbprom && $(GO) mod tidy -diff && $(GO) vet ./... && \
		$(GO) tool -modfile=../tools/go.mod staticcheck ./... && CGO_ENABLED=0 $(GO) test ./...

# The examples are a module of their own. Their tests kill processes; -short kills few.
examples:
	cd examples && $(GO) mod tidy -diff && $(GO) vet ./... && \
		$(GO) tool -modfile=../tools/go.mod staticcheck ./... && CGO_ENABLED=0 $(GO) test -short ./...

# What writes docs/BENCHMARKS.md is a module of its own too, for its plotting library.
.PHONY: report
report:
	cd tools/benchmarks && $(GO) mod tidy -diff && $(GO) vet ./... && \
		$(GO) tool -modfile=../go.mod staticcheck ./... && CGO_ENABLED=0 $(GO) test ./...

# The documents as static pages, into SITE: docs/ and what else is written, a page for each command, the packets of the
# lessons, the lab, and a search. They need no server but for the lab, and ask nobody for anything. A link that leads nowhere
# fails.
SITE ?= dist/site
.PHONY: site pages
site:
	@tmp=$$(mktemp -d) && trap 'rm -r "$$tmp"' EXIT && tool=$$tmp/adverb && $(GO) build -o "$$tool" ./cmd/adverb && \
		"$$tool" man --markdown "$$tmp/commands" && \
		mkdir "$$tmp/packets" && cp internal/wire/testdata/rdma-write-demo.pcap "$$tmp/read-write" && \
		cp internal/wire/testdata/rping.pcap "$$tmp/rping" && \
		for name in send mtu loss rnr; do "$$tool" demo $$name -q --pcap "$$tmp/$$name" || exit 1; done && \
		for name in send mtu loss rnr read-write rping; do \
			(cd "$$tmp" && "$$tool" see -o packets/$$name.html $$name) || exit 1; \
		done && \
		"$$tool" lab --out "$$tmp/lab" >/dev/null && \
		$(GO) -C tools/site build -o "$$tmp/site" . && \
		"$$tmp/site" -root . -commands "$$tmp/commands" -packets "$$tmp/packets" -lab "$$tmp/lab" \
			-version "$$(git describe --always --abbrev=12 --dirty=' and changes')" -o '$(SITE)' && \
		echo "The pages begin at $(SITE)/index.html"

# What makes the pages is a module of its own too, for its Markdown library. Its tests make them all, and read them in
# Chromium. Go does not see that their results depend on the documents, which are outside that module.
pages:
	cd tools/site && $(GO) mod tidy -diff && $(GO) vet ./... && \
		$(GO) tool -modfile=../go.mod staticcheck ./... && CGO_ENABLED=0 $(GO) test -count=1 ./...

# The page of adverb lab: the stage in WebAssembly, and Go's part of it, for programs that are built with -tags adverb_lab.
# Pages get less than 4 MB.
LAB = cmd/adverb/internal/lab/built
.PHONY: wasm
wasm:
	@tmp=$$(mktemp -d) && trap 'rm -r "$$tmp"' EXIT && $(GO) run ./cmd/adverb lab --out "$$tmp" >/dev/null && \
		mkdir -p $(LAB) && cp "$$tmp/engine.wasm.gz" "$$tmp/wasm_exec.js" $(LAB)
	@size=$$(wc -c < $(LAB)/engine.wasm.gz); echo "$(LAB)/engine.wasm.gz: $$size bytes"; test $$size -lt 4000000

# The tool for every system, into dist, with a bill of materials and checksums. With VERSION=v0.1.0, in a clean checkout
# of that tag, all that the release has.
DIST ?= dist
.PHONY: release prepare
release:
	@GO='$(GO)' deploy/release.sh '$(DIST)' '$(VERSION)'

# Writes VERSION into the tree, for the commit that is to have its tag. CONTRIBUTING.md says what follows.
prepare:
	@$(GO) run ./internal/publish prepare '$(VERSION)' "$$(date -u +%F)"

# The release is made, and thrown away.
.PHONY: release-dry
release-dry:
	@tmp=$$(mktemp -d) && trap 'rm -r "$$tmp"' EXIT && $(MAKE) --no-print-directory release DIST="$$tmp"

# Against Linux's own RDMA, in virtual machines: lab/README.md. Not part of test, since it needs root.
# In the package's directory go test shows what the lab reports even if all tests pass. Tests that wait do so side by side.
lab:
	@cd lab && ADVERB_LAB=require $(GO) test -count=1 -timeout 80m -parallel 4 $(LABFLAGS)

# Programs in C and Python from Debian's packages, under adverb run: docs/RUN.md. As root too.
.PHONY: programs
programs:
	@cd lab/programs && ADVERB_LAB=require $(GO) test -count=1 -timeout 60m $(PROGRAMSFLAGS)

# Go fuzzes one target at a time. Each package's tests are built once for all of its targets. FUZZTIME may be a
# number of inputs: 5000x.
fuzz:
	@tmp=$$(mktemp -d) || exit 1; trap 'rm -r "$$tmp"' EXIT; cache=$$($(GO) env GOCACHE)/fuzz/adverb; \
	for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
		$(GO) test -c -fuzz . -o "$$tmp/fuzz.test" "$$dir" && names=$$(cd "$$dir" && "$$tmp/fuzz.test" -test.list '^Fuzz') || exit 1; \
		for name in $$names; do \
			echo "== $$dir $$name"; \
			(cd "$$dir" && "$$tmp/fuzz.test" -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZTIME) \
				-test.fuzzminimizetime $(FUZZLESS) -test.fuzzcachedir "$$cache/$$dir") || exit 1; \
		done; \
	done

# Each fuzz target for a moment, by a number of inputs: where Go fuzzes by the time, a target may fail when its time is
# over ("context deadline exceeded").
fuzz-short:
	@$(MAKE) --no-print-directory fuzz FUZZTIME=1000x FUZZLESS=100x

# Whole systems on a bad network, each by a seed, so long: internal/whole. A failure prints how to replay it.
# SIMJOBS processes do so at a time, with seeds that lie far apart.
sim:
	@dir=$$(mktemp -d) || exit 1; trap 'rm -r "$$dir"' EXIT; \
	CGO_ENABLED=0 $(GO) test -c -o "$$dir/whole" ./internal/whole || exit 1; \
	cd internal/whole; jobs=; \
	for n in $$(seq 0 $$(($(SIMJOBS) - 1))); do \
		"$$dir/whole" -test.run 'TestWhole$$' -time $(SIMTIME) -first $$(($(SIMFIRST) + n * 10000000)) & \
		jobs="$$jobs $$!"; \
	done; \
	failed=0; for job in $$jobs; do wait "$$job" || failed=1; done; exit "$$failed"

# Races of code that takes no lock, so many rounds of each: internal/litmus. One package after another, since each race
# needs two processors.
LITMUS ?= 1000000
.PHONY: litmus
litmus:
	@list=$$($(GO) list -f '{{range .TestImports}}{{if eq . "github.com/adverb-rdma/adverb/internal/litmus"}}{{$$.ImportPath}}{{end}}{{end}}' ./...) && \
	CGO_ENABLED=0 $(GO) test -count=1 -p 1 -run '^TestLitmus' $$list -args -litmus $(LITMUS)

# Defects that are planted one at a time, in no file: which test finds each, and after how many runs.
# MUTANTS takes flags, such as MUTANTS='-run cm/ -o docs/MUTANTS.md' for some of them, into a table that git ignores.
mutants:
	@$(GO) run ./internal/mutants $(MUTANTS)

bench:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem ./...

# Measures everything side by side, in some fifteen minutes, and writes docs/BENCHMARKS.md with its plots. On a
# machine that does nothing else; as root for the networks between namespaces. UCX and libfabric are measured where
# they are installed. The second build is what go install makes: it does not take the profile.
.PHONY: benchmarks
benchmarks:
	@tool=$$(mktemp -d) && trap 'rm -r "$$tool"' EXIT && $(GO) build -pgo=deploy/adverb.pgo -o "$$tool/adverb" ./cmd/adverb && \
		$(GO) build -pgo=off -o "$$tool/plain" ./cmd/adverb && \
		revision=$$(git describe --always --abbrev=12 --dirty=' and changes') && \
		"$$tool/adverb" bench --json --plain "$$tool/plain" --revision "$$revision" $(BENCHFLAGS) > "$$tool/data.json" && \
		mkdir -p docs/benchmarks && cp "$$tool/data.json" docs/benchmarks/data.json && cd tools/benchmarks && $(GO) run . ../../docs/benchmarks/data.json ../../docs

# Measures short messages, calls and bulk for half a minute, and writes what the compiler is to build the tool for. On
# a machine that does nothing else. No path of it stays in the file.
.PHONY: profile
profile:
	@dir=$$(mktemp -d) && trap 'rm -r "$$dir"' EXIT && $(GO) build -trimpath -o "$$dir/adverb" ./cmd/adverb && \
		"$$dir/adverb" bench -n loopback,memory -p adverb -r 1 -t 1s --cpuprofile "$$dir/profiles" && \
		$(GO) tool pprof -proto -output "$$dir/all.gz" "$$dir"/profiles/*.pprof && gunzip "$$dir/all.gz" && \
		LC_ALL=C sed -i "s|$$dir|$$(echo "$$dir" | tr -c '\n' .)|g" "$$dir/all" && \
		gzip -9n "$$dir/all" && mv "$$dir/all.gz" deploy/adverb.pgo
