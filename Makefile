# Kybernate: `make demo` shows it, `make test` proves it, `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
PROTOS := $(wildcard proto/kybernate/gen/*.proto)
K      ?=
SLICE  ?=
SLICED := $(if $(SLICE),--slice $(SLICE))
# Half of a test is waiting. Where few are selected, most of the time is the workers' start.
WORKERS := $(shell n=$$(nproc); [ $$n -ge 4 ] && echo 8 || echo $$(($(if $(K),0,1) + n)))
GPU_PYTHON ?=

# Some environments forbid bytecode: each of hundreds of Pythons would compile everything again.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode

.DEFAULT_GOAL := help
.PHONY: help setup native criu ready proto states crds lock check test fuzz test-hostile test-strangers test-strangers-slice e2e test-faults try demo cluster images down bench bench-smoke test-gpu clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with the locked dependencies (idempotent)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Kybernate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --config-settings editable_mode=compat -e .
	@touch $@

native: ## build kyb-init, kyb-enter and the simulated driver into build/
	@$(MAKE) --no-print-directory -C native

# Tells all that the machine lacks at once, before the compiler would complain of one thing.
ready: setup
	@$(PY) -m tests.cluster check --before-build >/dev/null
	@$(MAKE) --no-print-directory native

proto: setup ## generate kybernate/gen from proto/
	$(PY) -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. $(PROTOS)

states: setup ## generate the pages of docs/reference, and the picture, that come from the code
	$(PY) -m kybernate.cli states > docs/reference/node/states.md
	$(PY) -m tests.unit.docs.reference.generated
	$(PY) -m tests.demo.top docs/images/top.svg
	$(PY) -m kybernate.cli states --of migration > docs/reference/node/migration.md

crds: setup ## generate config/crd and config/models.schema.json from the models of kybernate/api
	$(PY) -m kybernate.api.crds config/crd
	$(PY) -m kybernate.api.models.schema > config/models.schema.json

.PHONY: chart
chart: setup ## generate config/chart, for Helm, from the rest of config/
	$(PY) -m images.chart config/chart

.PHONY: generated
generated: setup ## all that is generated: proto, crds, states, tables of failures, figures of benches
	@$(MAKE) --no-print-directory proto crds
	@$(MAKE) --no-print-directory chart
	@$(MAKE) --no-print-directory states
	$(PY) -m tests.faults
	$(PY) -m bench.page

lock: ## renew requirements.lock from pyproject.toml (needs uv)
	uv pip compile -q --universal --generate-hashes --all-extras --no-emit-index-url \
	  --custom-compile-command "make lock" pyproject.toml -o requirements.lock

check: setup ## lint, types, layers, YAML, proto and shell
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/yamllint -s $$(git ls-files '*.yaml')
	$(VENV)/bin/shellcheck $$(git ls-files '*.sh' .ci/run)
	@sh scripts/check-generated.sh $(PY)

.PHONY: format
format: setup ## mend what ruff can: layout and imports
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

# Of the long tests that K= selects, or of all, a fifth.
PYTEST = MAKEFLAGS= nice -n $(3) $(PY) -m pytest -o cache_dir=.pytest_cache/$(firstword $(1)) $(addprefix tests/,$(1)) -n $(2) \
  --dist loadfile --no-loadscope-reorder -m "not e2e and not faults" \
  $(if $(K),-k "$(K)") --slice $(or $(SLICE),5)

# What isn't built yet is built first: that takes longer than any test may.
# While tests of servers wait, unit tests have the processors; what they say comes at the end.
# A word selects few: for them the workers of one session are started, not those of three.
test: setup native ## unit, property and API tests (real etcd and kube-apiserver), of the long ones a slice by commit; SLICE=1: all, K=expression selects
	@$(PY) -m tests.kit
ifneq ($(K),)
	@$(call PYTEST,unit integration local,$(WORKERS),0)
else
	@failed=0; $(MAKE) --no-print-directory -kj2 test-unit test-servers || failed=1; \
	cat build/unit.log; exit $$failed
endif

# 5 says that a slice has none.
.PHONY: test-unit test-servers
test-unit:
	@$(call PYTEST,unit,$(WORKERS),10) >build/unit.log 2>&1; case $$? in 0|5) ;; *) exit 1;; esac

# Those that share the machine's kernel come behind the others; each worker has servers of its own.
test-servers:
	@failed=0; $(call PYTEST,integration,3,0); case $$? in 0|5) ;; *) failed=1;; esac; \
	$(call PYTEST,local,2,0); case $$? in 0|5) ;; *) failed=1;; esac; exit $$failed

fuzz: setup ## 100,000 spoilt bodies at extender and webhook, in process (2,000 each in `make test`); KYB_FUZZ=N for N each
	KYB_FUZZ=$(or $(KYB_FUZZ),50000) $(PY) -m pytest tests/unit/webhook/test_fuzz.py tests/unit/extender/http/test_fuzz.py -o timeout=1800 -p no:cacheprovider

test-hostile: ready ## what a hostile tenant tries against the real thing; K=expression selects
	@$(PY) -m tests.kit --cluster
	$(PY) -m pytest tests/hostile -m hostile $(if $(K),-k "$(K)") $(SLICED)

test-strangers: ready ## park programs of the registries in every tier, and renew docs/reference/programs.md; K=expression selects, without that
	@$(PY) -m tests.kit --strangers all; rm -rf build/strangers
	$(PY) -m pytest tests/strangers -m strangers -n 8 --dist worksteal $(if $(K),-k "$(K)")
	@[ -n "$(K)" ] || { $(PY) -m tests.strangers.table --keep >build/programs.md && mv build/programs.md docs/reference/programs.md; }

test-strangers-slice: ready ## of test-strangers three programs, which change with the commit
	@$(PY) -m tests.kit --strangers slice
	$(PY) -m pytest tests/strangers -m strangers -n 3 -k "$$($(PY) -m tests.strangers.commits)"

.PHONY: test-upgrade
test-upgrade: ready ## parts of several releases beside each other, there and back; K="0.2.0-today and registry" selects
	@$(PY) -m tests.kit --cluster
	$(PY) -m pytest tests/upgrade -m upgrade $(if $(K),-k "$(K)") $(SLICED)

e2e: ready ## the whole cluster on this machine; K=expression selects
	@$(PY) -m tests.kit --cluster
	$(PY) -m pytest tests/e2e -m e2e $(if $(K),-k "$(K)") $(SLICED)

# All three are run in any case: each shows what the others can't.
test-faults: ready ## break every part in every state of a seat, every row below RAM, SCHEDULES=100000 simulated; K= selects, without those
	@$(PY) -m tests.kit --cluster
	@failed=0; mkdir -p build; \
	$(PY) -m pytest tests/faults -m faults $(if $(K),-k "$(K)") || failed=1; \
	[ -z "$(K)" ] || exit $$failed; \
	{ $(PY) -m tests.faults --rows >build/rows && $(PY) -m pytest @build/rows; } || failed=1; \
	$(PY) -m tests.simulation --schedules $(or $(SCHEDULES),100000) --json || failed=1; exit $$failed

try: setup native ## three toy models swap on a simulated GPU, without root or Kubernetes; KEEP=1 leaves it up
	@$(PY) -m tests.local $(if $(KEEP),--keep)

demo: ready ## six models share four GPUs, live; KEEP=1 leaves it up
	$(PY) -m tests.demo $(if $(KEEP),--keep)

cluster: ready ## bring the one-machine cluster up and say how to talk to it
	$(PY) -m tests.cluster up

images: setup ## container images into build/images/, without a daemon; K=name for one
	$(PY) -m images build $(K)

.PHONY: dist
dist: setup ## the wheel, for pip install, into build/dist/
	$(PY) -m images wheel

criu: setup ## build the static CRIU into the cache (40 s); tests that need it do so themselves
	@$(PY) -m images criu

down: setup ## take the one-machine cluster down, whatever is left of it
	$(PY) -m tests.cluster down

bench: ready ## every bench, one JSON line each
	@for b in local local.agreement proxy 'proxy --replicas 3' proxy.frames node.wake 'node.wake --connect' 'node.wake --connect --tier nvme' node.recover cluster.storm cluster.agreement node.sidecar node.soak node.turns 'node.park --workload nginx' 'node.park --workload redis' 'node.park --workload llama' 'node.park --workload redis --lazy' 'node.park --workload redis --lazy --pod' saved.lazily saved.saves operator operator.template operator.move operator.reconcile node.gpu placement.colocate placement.defrag placement.policy cluster.leaders placement.openb.table cluster.extender cluster.ledger cluster.throughput saved.incremental saved.tiers 'saved.tiers --plain' saved.move 'saved.move --workload redis' saved.registry saved.histories; do $(PY) -m bench.$$b --json || exit 1; done
	$(PY) -m tests.simulation --json

bench-smoke: ready ## every bench that needs no cluster, in its smallest form; CLUSTER=1: those that bring one up, too; SLICE=5: one of them
	@$(PY) -m tests.kit $(if $(CLUSTER)$(SLICE),--cluster)
	$(PY) -m bench.smoke $(if $(CLUSTER),--cluster) $(SLICED) --json
	$(PY) -m tests.simulation --schedules 60 --json

test-gpu: $(if $(GPU_PYTHON),,setup) $(if $(SIMULATE),setup native) ## ask a real GPU all that is assumed, within nine minutes; GPU_PYTHON= names another Python, SIMULATE=1 asks the simulated driver
	@$(or $(GPU_PYTHON),$(PY)) -m tests.gpu $(if $(SIMULATE),--simulate) $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(PARTS),--only $(PARTS))

.PHONY: gpu-luggage
gpu-luggage: setup native ## what `make test-gpu` needs on a GPU machine without a network, into build/gpu; GPU_PYTHON_VERSION=3.12
	$(PY) -m tests.gpu.luggage --python $(or $(GPU_PYTHON_VERSION),3.12)

clean: ## remove what the build made (not the cache of cluster binaries)
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
