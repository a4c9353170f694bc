#!/usr/bin/env bash
# Builds the tool for every system into a directory: dist, or the first argument; with a bill of materials and checksums.
# With a version as the second argument it writes all that the release has, and fails unless the tree is the clean
# checkout of the version's tag. The same commit, built by the same Go with the same stamps of the version, makes the
# same bytes on any machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

go=${GO:-go}
out=${1:-dist}
version=${2:-}
mkdir -p "$out"
if [[ -n $(ls -A "$out") && -n $version ]]; then
	echo "release: $out has files already: a release begins with an empty directory" >&2
	exit 1
fi

tools=$(mktemp -d)
trap 'rm -r "$tools"' EXIT
CGO_ENABLED=0 "$go" build -buildvcs=false -o "$tools/publish" ./internal/publish

if [[ -n $version ]]; then
	"$tools/publish" check "$version"
	for tag in "$version" "adverbprom/$version"; do
		if [[ $(git rev-parse -q --verify "refs/tags/$tag^{commit}") != $(git rev-parse HEAD) ]]; then
			echo "release: the tag $tag is not on what is checked out: git tag -s $tag" >&2
			exit 1
		fi
	done
	if [[ -n $(git status --porcelain) ]]; then
		echo "release: the checkout has changes: commit them, or release from a fresh clone" >&2
		exit 1
	fi
	flags=-buildvcs=true
else
	flags=
fi

time=$(TZ=UTC git log -1 --date=format-local:%FT%TZ --format=%cd 2>/dev/null || echo 1970-01-01T00:00:00Z) # of the commit
make --no-print-directory wasm GO="$go" # of adverb lab, in each program
programs=()
# Those called native have cards. They load libibverbs, so they are dynamic, and need glibc to start.
for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64 linux/amd64/native linux/arm64/native; do
	IFS=/ read -r os arch kind <<<"$target"
	file=adverb-$os-$arch${kind:+-$kind}
	[[ $os != windows ]] || file+=.exe
	CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0 GOOS=$os GOARCH=$arch \
		"$go" build -trimpath $flags -tags "adverb_lab${kind:+,adverb_$kind}" -pgo=deploy/adverb.pgo -ldflags='-s -w' -o "$out/$file" ./cmd/adverb
	programs+=("$out/$file")
	echo "$out/$file"
done
files=("${programs[@]##*/}")

if [[ -n $version ]]; then
	"$tools/publish" stamped "$version" "${programs[@]}"
	"$tools/publish" notes "$version" >"$out/NOTES.md"
	git archive --format=tar --prefix="adverb-$version/" HEAD | gzip -9n >"$out/adverb-$version.tar.gz"
	files+=(NOTES.md "adverb-$version.tar.gz")
	echo "$out/NOTES.md"
	echo "$out/adverb-$version.tar.gz"
fi
"$tools/publish" sbom "${version:-v0.0.0-unreleased}" "$time" "${programs[@]}" >"$out/adverb.cdx.json"
files+=(adverb.cdx.json)
echo "$out/adverb.cdx.json"
cd "$out"
sha256sum "${files[@]}" >SHA256SUMS
sha256sum --quiet --check SHA256SUMS
echo "$out/SHA256SUMS"
