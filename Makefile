# Targets build on `install`: a .venv made from the lock files, with the `headrace` command in it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ARGS   ?=

.PHONY: help install install-dev compile up test test-compiled test-engines soak bench lint lock clean

help:                      ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

install: $(VENV)/.runtime  ## make .venv with the headrace command

install-dev: $(VENV)/.dev  ## and what the tests need

# A stamp instead of .venv/bin/python: that one exists before the environment is whole.
# Debian splits ensurepip off; where it is missing, the interpreter's own pip fills the environment.
$(VENV)/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headrace needs Python 3.11 or newer: set PYTHON=...")'
	@echo "Making $(VENV), once."
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@touch $@

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/.base
	@$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements-dev.lock
	@touch $@

compile: install-dev       ## the core as machine code: a small request costs a third; needs a C compiler, takes minutes
	@$(BIN)/python -m gateway.compiled.build

up: install                ## a whole simulated fleet and the gateway; ARGS="--engine sim --short 2 --long 1"
	@exec $(BIN)/headrace up $(ARGS)

test: lint                 ## everything that needs no engine download
	$(BIN)/python -m pytest $(ARGS)

test-compiled: compile     ## the same tests on the compiled core, save those that reach into its inside
	$(BIN)/python -m pytest $(ARGS)

test-engines: install-dev  ## real vLLM and llama.cpp on the CPU (installs them once, outside the checkout)
	$(BIN)/python -m pytest tests/engines/real -p no:cacheprovider --override-ini addopts= --strict-markers -ra $(ARGS)

soak: install-dev          ## what takes long: gateways, Redis and the network failing at random for ten minutes, twice
	$(BIN)/python -m pytest -m soak tests/wire $(ARGS)

bench: install-dev         ## what a request costs beside nginx, Envoy and two Rust routers, then how well requests are placed; some minutes
	-@$(BIN)/python -m gateway.compiled.build
	-$(BIN)/headrace loadtest compare $(ARGS)
	$(BIN)/headrace loadtest simulate --suite evidence $(ARGS)

lint: install-dev          ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lock:                      ## renew the lock files (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q requirements-build.in pyproject.toml -o requirements.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q --extra dev requirements-build.in pyproject.toml -o requirements-dev.lock

clean:                     ## remove what the targets made
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
