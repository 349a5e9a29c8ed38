# Two commands set everything up on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.installed-dev
NATIVE := $(VENV)/.installed-native
RELEASE := $(VENV)/.installed-release
SITE   := $(VENV)/.installed-docs
# each start of a broker or a command would compile hundreds of modules again, which takes longer than all else in it
unexport PYTHONDONTWRITEBYTECODE
SERVE_ARGS ?=
CLIENTS_ARGS ?=
LOCK_ARGS ?=
RELEASE_ARGS ?=
# a third of the time tests wait for servers of their own; more than four would wait for the same disk
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) * 3 // 2))')
# tests start thousands of brokers, each of which waits for its disk, so their stores lie in memory where it is large
# enough. Tests that are about a disk use the fixture `on_disk`
SCRATCH ?= $(shell $(PYTHON) -c 'import os; s = os.statvfs("/dev/shm"); print("/dev/shm" if s.f_bavail * s.f_frsize > 8 << 30 and not s.f_flag & os.ST_NOEXEC else "")' 2>/dev/null)
# uv takes a tenth of pip's time. pip is there for machines on which uv does not reach the package index: it reads pip.conf
define INSTALL
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile 'uv>=0.9,<1' && \
  $(BIN)/uv pip install --quiet --python $(BIN)/python --editable $(1) || \
  { echo "uv cannot install; pip tries"; $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable $(1); }
endef
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install native serve demo test test-slow test-kubernetes test-clients check fix bench bench-queues bench-clients proto manifests lock release docs docs-serve clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Quarry needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>&1). Set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "could not make a virtual environment: install the venv module of $(PYTHON) (Debian: python3-venv)"; exit 1; }
	@echo "installing Quarry into $(VENV) (first time only)"
	@$(call INSTALL,'.[demo]')
	@touch $(STAMP)

# apart, because Spark alone is ten times what a broker needs
$(TOOLS): $(STAMP)
	@echo "installing the development tools and Spark into $(VENV) (first time only)"
	@$(call INSTALL,'.[dev]')
	@touch $(TOOLS)

# optional: where it cannot be built all of it is done in Python. A first broker does not wait for it: compiling takes minutes
$(NATIVE): $(STAMP) $(wildcard native/src/*.rs native/Cargo.*)
	@if command -v cargo >/dev/null; then \
	  echo "building the native part into $(VENV) (first time only)"; mkdir -p build; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps ./native >build/native.log 2>&1 || \
	    echo "it could not be built (build/native.log says why): Quarry runs in Python alone"; \
	else echo "no cargo here, so no native part: Quarry runs in Python alone"; fi
	@touch $(NATIVE)

native:  ## build the native part, or rebuild it (needs Rust); half the CPU time per message from the next start on
	@rm -f $(NATIVE)
	@$(MAKE) --no-print-directory $(NATIVE)

install: $(TOOLS) $(NATIVE)  ## make the virtual environment and install everything

serve: $(STAMP)  ## run the broker in the foreground on its embedded store (SERVE_ARGS="--store DIR ...")
	@exec $(BIN)/quarry serve $(SERVE_ARGS)

demo: $(STAMP)  ## send and receive one message with the official Python client on a temporary broker
	@$(BIN)/quarry demo

test: $(TOOLS) $(NATIVE)  ## the test suite (the fast part; under 20 minutes on 2 cores)
	@$(if $(SCRATCH),PYTEST_DEBUG_TEMPROOT=$(SCRATCH)) $(PYTEST)

test-slow: $(TOOLS) $(NATIVE)  ## crash loops, power cuts (as root), many clients, clients of other languages
	@$(PYTEST) -m slow --timeout 1800

test-kubernetes: $(TOOLS) $(NATIVE)  ## the image and the chart on a Kubernetes of two nodes in namespaces of this machine (as root)
	@$(BIN)/python -m pytest -m kubernetes tests/kubernetes

test-clients: $(TOOLS) $(NATIVE)  ## every feature with every official client; CLIENTS_ARGS="--write" puts the matrix into docs/clients
	@$(BIN)/python -m tests.matrix $(CLIENTS_ARGS)

check: $(TOOLS) $(NATIVE)  ## format, lint, types, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(PYTEST)

fix: $(TOOLS)  ## format and apply the safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(TOOLS) $(NATIVE)  ## every benchmark, one JSON line each
	@$(BIN)/python -m bench

QUEUE_BENCHMARKS := many_queues rocketmq_store million_queues ten_million_queues

bench-queues: $(TOOLS) $(NATIVE)  ## millions of queues beside a thousand, RocksDB beside files and RocketMQ: the tables of docs/benchmarks.md
	@$(BIN)/python -m bench $(QUEUE_BENCHMARKS)
	@$(BIN)/python -m bench.tables $(QUEUE_BENCHMARKS)

bench-clients: $(TOOLS) $(NATIVE)  ## the official Java client at Quarry and at RocketMQ: the table of docs/benchmarks.md
	@$(BIN)/python -m bench clients
	@$(BIN)/python -m bench.tables clients

proto: $(TOOLS)  ## generate quarry_mq/protocol/proto from proto/
	@$(BIN)/python proto/generate.py

manifests: $(TOOLS)  ## render deploy/kubernetes from the Helm chart (HELM=/path/to/helm, or Go to build it)
	@$(BIN)/python deploy/helm/render.py

lock: $(TOOLS)  ## choose the versions of the images' packages anew, with hashes (LOCK_ARGS=--upgrade: the newest)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python deploy/locks/lock.py $(LOCK_ARGS)

$(RELEASE): $(STAMP)
	@echo "installing the tools for releases into $(VENV) (first time only)"
	@$(call INSTALL,'.[release]')
	@touch $(RELEASE)

release: $(RELEASE)  ## wheels, source distributions, chart, image, checksums, bill of materials in build/release (RELEASE_ARGS="--without image")
	@$(BIN)/python deploy/release/release.py $(RELEASE_ARGS)

# apart, so that nobody waits for Spark to read the documents
$(SITE): $(STAMP)
	@echo "installing the tools for the site into $(VENV) (first time only)"
	@$(call INSTALL,'.[docs]')
	@touch $(SITE)

docs: $(SITE)  ## build the site of the documents into build/site; every link is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

docs-serve: $(SITE)  ## the same site on 127.0.0.1:8000, made anew when a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
