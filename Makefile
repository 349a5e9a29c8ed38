# Two commands set everything up on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVE_ARGS ?=
CLIENTS_ARGS ?=
# more would wait for the same disk
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install serve demo test test-slow test-clients check fix bench bench-queues proto clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Quarry needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>&1). Set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "could not make a virtual environment: install the venv module of $(PYTHON) (Debian: python3-venv)"; exit 1; }
	@echo "installing Quarry and its development tools into $(VENV) (first time only)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## make the virtual environment and install

serve: $(STAMP)  ## run the broker in the foreground on its embedded store (SERVE_ARGS="--store DIR ...")
	@exec $(BIN)/quarry serve $(SERVE_ARGS)

demo: $(STAMP)  ## send and receive one message with the official Python client on a temporary broker
	@$(BIN)/python -m cli.demo

test: $(STAMP)  ## the test suite (the fast part; under 20 minutes on 2 cores)
	@$(PYTEST)

test-slow: $(STAMP)  ## crash loops, power cuts (as root), many clients, clients of other languages
	@$(PYTEST) -m slow --timeout 1800

test-clients: $(STAMP)  ## every feature with every official client; CLIENTS_ARGS="--write" puts the matrix into the README
	@$(BIN)/python -m tests.matrix $(CLIENTS_ARGS)

check: $(STAMP)  ## format, lint, types, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(PYTEST)

fix: $(STAMP)  ## format and apply the safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)  ## every benchmark, one JSON line each
	@$(BIN)/python -m bench

bench-queues: $(STAMP)  ## a million queues beside a thousand, RocksDB beside files and RocketMQ: the tables of docs/benchmarks.md
	@$(BIN)/python -m bench many_queues million_queues
	@$(BIN)/python -m bench.queue_table

proto: $(STAMP)  ## generate server/_generated from proto/
	@$(BIN)/python proto/generate.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
