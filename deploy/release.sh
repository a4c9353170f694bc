#!/usr/bin/env bash
# Builds the tool for every system, with checksums, into a directory: dist, or the argument. The same commit,
# built by the same Go with the same stamps of the version, makes the same bytes on any machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-dist}
mkdir -p "$out"
export CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0
for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64; do
	export GOOS=${target%/*} GOARCH=${target#*/}
	file=adverb-$GOOS-$GOARCH
	[[ $GOOS != windows ]] || file+=.exe
	"${GO:-go}" build -trimpath -pgo=deploy/adverb.pgo -ldflags='-s -w' -o "$out/$file" ./cmd/adverb
	echo "$out/$file"
done
cd "$out"
sha256sum adverb-{linux,darwin}-{amd64,arm64} adverb-windows-{amd64,arm64}.exe >SHA256SUMS
sha256sum --quiet --check SHA256SUMS
