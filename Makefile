# DueMQ. Requires make and Python 3.11 to 3.14; dependencies are installed into .venv.
#
#   make demo        run a broker and a client; show delayed messages in a live table
#   make demo-ha     kill the master of a group of two brokers under load (needs Java and Maven)
#   make test        run the tests: every package and every guarantee, in 9 to 12 minutes on two cores
#   make test-all    run also the extended tests, with more kills and failovers
#   make test-fast   run the tests without Java, real clients and kills
#   make lint        check format, style and types
#   make bench       compare performance with Apache's broker
#   make bench-peers compare performance with NATS, Redis, PostgreSQL and Apache's brokers
#   make bench-scale PENDING=100000000   measure one broker with so many pending timers (10^8: 55 GB of disk)
#   make bench-many MINUTES=60   measure one broker with 10,000 topics, 2,000 groups and 5,000 connections
#   make soak        run hours of kills, power cuts, failovers, damaged files and clock steps
#   make docs        write the generated reference pages
#   make site        build the documentation site into build/site
#   make image       build the container image localhost/duemq (needs buildah)
#   make release     build sdist, wheel and SBOM of the last commit into build/release, and check them
#   make bundle      build an archive of the wheel and all wheels that it needs, for machines without package index
#   make lock        write constraints.txt from the environment
#   make newest      run lint and the fast tests with the newest dependencies, in .venv-newest
#   make clean       remove the environment and caches

PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p 2>/dev/null -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	&& echo $$p && break; done)
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --no-compile --disable-pip-version-check $(CONSTRAINTS:%=-c %) -e
SOAK_KILLS ?= 2000
SOAK_MIGRATION_KILLS ?= 200
SOAK_CONSUMER_KILLS ?= 500
SOAK_POP_KILLS ?= 200
SOAK_POWER_CUTS ?= 1000
SOAK_FAILOVERS ?= 1000
SOAK_MIGRATION_FAILOVERS ?= 200
SOAK_BIT_FLIPS ?= 10000
SOAK_PAGES ?= 2000
SOAK_SECTORS ?= 1000
SOAK_GROUP_SEEDS ?= 5000
SOAK_DECISIONS ?= 100000
SOAK_FUZZ_INPUTS ?= 10000000
# Number of cores plus two, at most 4: many tests wait for other processes and delivery times.
TEST_WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? n + 2 : 4)))
CAMPAIGNS ?= --kills=100 --consumer-kills=20 --power-cuts=10 --pop-kills=5 --migration-kills=8 --failovers=50 \
	--migration-failovers=3 --group-seeds=8 --fuzz-inputs=200000 --filter-expressions=100000
PYTEST = $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

# Without bytecode files, each test process would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env image demo demo-ha test test-all test-fast lint bench bench-peers bench-scale bench-many soak docs site release bundle lock newest clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

env: $(VENV)/ready
	@$(BIN)/python -m duemq kernels warm

$(VENV)/ready: $(VENV)/demo
	@echo "installing the packages of tests and audits into $(VENV): 1.5 GB, a few minutes ..."
	@$(INSTALL) '.[dev]'
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null  # compiles the tests once, not in each worker
	@touch $(VENV)/demo $@

# Dependencies of the broker and the demo; the first `make test`, `lint` or `bench` installs the others.
$(VENV)/demo: pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.14 found; install one, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing the packages of the broker and the demo into $(VENV): about a minute ..."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) .
	@touch $@

demo: $(VENV)/demo
	@$(BIN)/python -m tests.support.demo

demo-ha: $(VENV)/demo
	@$(BIN)/python -m tests.support.failover_demo

test: env
	$(PYTEST) -m "not extended" $(PYTEST_ARGS)

test-all: env
	STORAGE_FAULTS=40 STORAGE_DAMAGES=12 SIMULATION_SEEDS=30 MIGRATION_MODELS=20 FAILOVER_MODELS=25 \
	TIMER_MODELS=20 COMPACT_MODELS=20 AUDIT_HISTORIES=12 EXAMPLES=100 $(PYTEST) $(CAMPAIGNS) $(PYTEST_ARGS)

test-fast: env
	$(PYTEST) -m "not (extended or interop or crash or spark)" \
		--ignore=tests/fuzz --ignore=tests/simulation $(PYTEST_ARGS)

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: env
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

bench-peers: env
	$(BIN)/python -m benchmarks.peers $(BENCH_ARGS)

# SCALE_ROOT keeps the store; SCALE_PHASES selects phases, see `python -m benchmarks.scale --help`.
PENDING ?= 100000
SCALE_ROOT ?= /var/tmp/duemq-scale-$(PENDING)
SCALE_PHASES ?= all
bench-scale: env
	$(BIN)/python -m benchmarks.scale $(SCALE_PHASES) --pending $(PENDING) --root $(SCALE_ROOT)

# MANY_ARGS="--topics 100 --groups 20 --connections 50 --rate 1000" measures a smaller size.
MINUTES ?= 1
MANY_ARGS ?= --page
bench-many: env
	$(BIN)/python -m benchmarks.many --seconds $$(($(MINUTES) * 60)) --search $(MANY_ARGS)

soak: env
	$(BIN)/python -m pytest tests/crash --kills=$(SOAK_KILLS) --migration-kills=$(SOAK_MIGRATION_KILLS) \
		--consumer-kills=$(SOAK_CONSUMER_KILLS) --pop-kills=$(SOAK_POP_KILLS) --power-cuts=$(SOAK_POWER_CUTS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/failover --failovers=$(SOAK_FAILOVERS) \
		--migration-failovers=$(SOAK_MIGRATION_FAILOVERS) $(PYTEST_ARGS)
	$(BIN)/python -m tests.storage_faults.campaign --all
	$(BIN)/python -m tests.storage_faults.bit_flips --count=$(SOAK_BIT_FLIPS)
	$(BIN)/python -m tests.storage_faults.bit_flips --damage=page --count=$(SOAK_PAGES)
	$(BIN)/python -m tests.storage_faults.bit_flips --damage=sector --count=$(SOAK_SECTORS)
	$(BIN)/python -m tests.clock_steps.campaign
	$(BIN)/python -m tests.clock_steps.real_clock
	$(BIN)/python -m pytest tests/simulation/test_group.py --group-seeds=$(SOAK_GROUP_SEEDS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/duemq/test_decision_rig.py --decisions=$(SOAK_DECISIONS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/fuzz --fuzz-inputs=$(SOAK_FUZZ_INPUTS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/interop/test_rust_client.py --rust-client $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/spark_reconciliation/test_mutations.py --mutations $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/spark_reconciliation/test_on_spark.py -k among_many --planted=1000000 $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/spark_reconciliation/spark/test_database.py -k do_not_exist --planted=1000000 $(PYTEST_ARGS)

docs: env
	$(BIN)/python -m tests.support.reference_pages docs/reference

site: env
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

release: env
	@VENV=$(VENV) .ci/release

bundle: env
	@VENV=$(VENV) .ci/bundle

# Image localhost/duemq; BASE=NAME uses another base, such as one made by deploy/container/base, and WHEELS=DIRECTORY
# the wheels of a bundle instead of a package index.
image: $(VENV)/demo
	@rm -rf build/image && mkdir -p build/image/source
	@git ls-files -z | xargs -0 cp --parents -t build/image/source
	@$(BIN)/python -m pip wheel --quiet --no-deps -w build/image build/image/source
	@cp constraints.txt build/image && rm -rf build/image/source
	$(if $(WHEELS),@cp -n $(WHEELS)/*.whl build/image)
	buildah build --layers $(if $(BASE),--build-arg BASE=$(BASE)) $(if $(WHEELS),--build-arg PIP_NO_INDEX=1) -f deploy/container/Containerfile -t localhost/duemq build/image

lock: env
	@{ echo "# Versions tested in CI. Written by \`make lock\`; \`make env\` installs them, \`make newest\` ignores them."; \
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v "^pip="; } > constraints.new
	@mv constraints.new constraints.txt

newest:
	$(MAKE) lint test-fast VENV=.venv-newest CONSTRAINTS=

clean:
	rm -rf $(VENV) .venv-newest build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
