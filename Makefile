# DueMQ. Needs make and Python 3.11, 3.12 or 3.13; everything else is put into .venv.
#
#   make demo    a broker, a real RocketMQ client, messages of several levels, a live table
#   make test    all tests                    make lint    format, style and types
#   make bench   against Apache's broker      make soak    hours of kill -9

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null && $$p 2>/dev/null -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
SOAK_KILLS ?= 2000
SOAK_MIGRATION_KILLS ?= 200
SOAK_CONSUMER_KILLS ?= 500
SOAK_POWER_CUTS ?= 100
SOAK_DECISIONS ?= 100000
SOAK_FUZZ_INPUTS ?= 10000000
TEST_WORKERS ?= auto

.PHONY: env demo test lint bench soak docs clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

env: $(VENV)/ready
	@$(BIN)/python -m broker.cli kernels warm

$(VENV)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 found; install one, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: env
	@$(BIN)/python -m broker.cli demo

test: env
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: env
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

soak: env
	$(BIN)/python -m pytest tests/crash --kills=$(SOAK_KILLS) --migration-kills=$(SOAK_MIGRATION_KILLS) \
		--consumer-kills=$(SOAK_CONSUMER_KILLS) --power-cuts=$(SOAK_POWER_CUTS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/broker/test_decision_world.py --decisions=$(SOAK_DECISIONS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/fuzz --fuzz-inputs=$(SOAK_FUZZ_INPUTS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/reconciliation/test_mutations.py --mutations $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/reconciliation/test_on_spark.py -k among_many --planted=1000000 $(PYTEST_ARGS)

docs: env
	$(BIN)/python -m broker.cli.reference docs/reference

clean:
	rm -rf $(VENV) build *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
