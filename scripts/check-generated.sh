#!/bin/sh
# Fails if kybernate/gen, a generated page of docs/reference, config/crd or config/models.schema.json differ from what their sources generate, or if a decision
# is not in the index of docs/design.
set -eu
py=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$py" -m grpc_tools.protoc --fatal_warnings -I proto --python_out="$tmp" --pyi_out="$tmp" \
  --grpc_python_out="$tmp" proto/kybernate/gen/*.proto
for file in "$tmp"/kybernate/gen/*; do
  cmp -s "$file" "kybernate/gen/$(basename "$file")" || {
    echo "kybernate/gen/$(basename "$file") is stale: run 'make proto'" >&2
    exit 1
  }
done
"$py" -m kybernate.cli states >"$tmp/states.md"
"$py" -m kybernate.cli states --of migration >"$tmp/migration.md"
for file in states migration; do
  cmp -s "$tmp/$file.md" "docs/reference/$file.md" || {
    echo "docs/reference/$file.md is stale: run 'make states'" >&2
    exit 1
  }
done
"$py" -m kybernate.api.crds "$tmp"
for file in gpunode artifactgrant checkpointrequest; do
  cmp -s "$tmp/$file.yaml" "config/crd/$file.yaml" || {
    echo "config/crd/$file.yaml is stale: run 'make crds'" >&2
    exit 1
  }
done
"$py" -m kybernate.api.models.schema >"$tmp/models.schema.json"
cmp -s "$tmp/models.schema.json" config/models.schema.json || {
  echo "config/models.schema.json is stale: run 'make crds'" >&2
  exit 1
}
"$py" -m tests.unit.docs.reference.generated "$tmp"
for file in settings objects models-file metrics messages http; do
  cmp -s "$tmp/$file.md" "docs/reference/$file.md" || {
    echo "docs/reference/$file.md is stale: run 'make states'" >&2
    exit 1
  }
done
"$py" -m bench.page "$tmp/benchmarks.md"
cmp -s "$tmp/benchmarks.md" docs/results/benchmarks.md || {
  echo "docs/results/benchmarks.md is stale: run 'python -m bench.page'" >&2
  exit 1
}
for page in docs/design/[0-9]*.md; do
  grep -qF "($(basename "$page"))" docs/design/README.md || {
    echo "docs/design/README.md does not list $page: add its number, title and status" >&2
    exit 1
  }
done
