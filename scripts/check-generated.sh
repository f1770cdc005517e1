#!/bin/sh
# Fails if a file that `make generated` makes differs from what its sources generate, or if a decision is not in the
# index of docs/design. All that is stale is told at once.
set -eu
py=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/crd"
stale=

compare() {
  cmp -s "$1" "$2" || {
    echo "$2 is stale" >&2
    stale=yes
  }
}

"$py" -m grpc_tools.protoc --fatal_warnings -I proto --python_out="$tmp" --pyi_out="$tmp" proto/kybernate/gen/*.proto
for file in "$tmp"/kybernate/gen/*; do
  compare "$file" "kybernate/gen/$(basename "$file")"
done
"$py" -m kybernate.api.crds "$tmp/crd"
for file in "$tmp"/crd/*; do
  compare "$file" "config/crd/$(basename "$file")"
done
"$py" -m kybernate.api.models.schema >"$tmp/models.schema.json"
compare "$tmp/models.schema.json" config/models.schema.json
"$py" -m images.chart "$tmp/chart"
(cd "$tmp/chart" && find . -type f) | sort >"$tmp/names"
while read -r file; do
  compare "$tmp/chart/$file" "config/chart/${file#./}"
done <"$tmp/names"
mkdir "$tmp/reference" "$tmp/reference/node" "$tmp/reference/serving"
"$py" -m kybernate.cli states >"$tmp/reference/node/states.md"
"$py" -m kybernate.cli states --of migration >"$tmp/reference/node/migration.md"
"$py" -m tests.unit.docs.reference.generated "$tmp/reference"
for file in "$tmp"/reference/*.md "$tmp"/reference/*/*.md; do
  compare "$file" "docs/${file#"$tmp/"}"
done
"$py" -m tests.demo.top "$tmp/top.svg"
compare "$tmp/top.svg" docs/images/top.svg
"$py" -m bench.page "$tmp/benchmarks.md"
compare "$tmp/benchmarks.md" docs/results/benchmarks.md
[ -z "$stale" ] || {
  echo "run 'make generated', and commit what it changes" >&2
  exit 1
}
for page in docs/design/[0-9]*.md; do
  grep -qF "($(basename "$page"))" docs/design/README.md || {
    echo "docs/design/README.md does not list $page: add its number, title and status" >&2
    exit 1
  }
done
