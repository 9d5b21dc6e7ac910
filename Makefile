# Two commands matter: `make demo` and `make test`. Both set up what they need in .venv.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test check proto bench e2e e2e-containers soak fuzz screenshots clean help

help:  ## show this
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The installation is done once, and again when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedelmy needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); torch is large, the first time takes a few minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## four real sites on this machine train one model
	$(BIN)/fedelmy-launch demo

# One module per worker: the end-to-end tests of a module share their daemons. In the order of
# tests/conftest.py: long modules first.
PYTEST := $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed  ## unit, integration and end-to-end tests, but for the longest ones
	$(PYTEST) -m "not full" tests

e2e: $(VENV)/.installed  ## the tests that start real daemons, then every process killed at every moment, then bits flipped on the disk
	$(PYTEST) tests/e2e
	$(PYTEST) -m full tests --ignore tests/e2e
	$(BIN)/python -m tests.e2e.kill_matrix
	$(BIN)/python -m tests.e2e.kill_matrix --pull
	$(BIN)/python -m tests.e2e.flip_bits

e2e-containers: $(VENV)/.installed  ## docker-compose.yml to its end, also with a site killed and one cut off; skips without an engine
	$(BIN)/python -m tests.e2e.containers

soak: $(VENV)/.installed  ## 50 schedules of random faults on real daemons, a quarter of an hour
	$(BIN)/python -m tests.e2e.soak --schedules 50 --seed 0 --json

fuzz: $(VENV)/.installed  ## every decoder that faces the network, with more than 100,000 hostile inputs
	$(BIN)/python -m tests.fuzz.run

check: $(VENV)/.installed  ## style, types, and that the generated code is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate_errors.py --check
	$(BIN)/python docs/generate_reference.py --check

proto: $(VENV)/.installed  ## generate the Python code of the wire contract
	$(BIN)/python proto/generate.py

bench: $(VENV)/.installed  ## every benchmark, one after the other
	for file in bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python -m bench.$$(basename $$file .py) || exit 1; done

screenshots: $(VENV)/.installed  ## docs/images: report and dashboard of a real run, in Chromium
	$(BIN)/python docs/screenshots.py

clean:  ## remove what make made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis fedelmy-demo fuzz-failures
