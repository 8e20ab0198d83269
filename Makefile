# Every target makes the virtual environment it needs; nothing has to be set up before.
# `make PYTHON=python3.12 VENV=/tmp/venv ...` chooses another interpreter or place.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python -m
PIP := $(RUN) pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test check fmt lint type floors bench crash

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.made-run  ## the main job in a terminal; needs no key. ARGS=--help for options
	@$(VENV)/bin/python docs/examples/approve_charge.py $(ARGS)

test: $(VENV)/.made-dev  ## the tests
	$(RUN) pytest -q -m "not slow"

check: lint type floors test  ## what CI runs: format, lint, types, layers, tests
	@echo "check: all good"

fmt: $(VENV)/.made-dev  ## write the format and what ruff can repair
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint: $(VENV)/.made-dev  ## format, lint, sizes
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(VENV)/bin/python scripts/check_sizes.py

type: $(VENV)/.made-dev  ## mypy --strict
	$(RUN) mypy toolnexus tests/typing docs/examples scripts

floors: $(VENV)/.made-dev  ## import layers
	$(VENV)/bin/lint-imports

bench: $(VENV)/.made-dev  ## ratios against what a careful user would write by hand
	$(RUN) tests.bench

crash: $(VENV)/.made-dev  ## long suites: races, properties, crashes, with many more examples
	HYPOTHESIS_PROFILE=long $(RUN) pytest -q --timeout 3600 tests/machine tests/threads tests/durable

# The package is built with the environment's own setuptools: the build then fetches nothing,
# and once the packages are there all of this works offline.

$(VENV)/.made: Makefile
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "$(PYTHON) not found: install Python 3.10 or newer, or say make PYTHON=..." >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "toolnexus needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	    "say make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) -m venv does not work here: install the venv module" \
	    "(Debian and Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(PIP) install 'setuptools>=70.1'
	@touch $@

$(VENV)/.made-run: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing toolnexus into $(VENV)"
	@$(PIP) install --no-build-isolation -e .
	@touch $@

$(VENV)/.made-dev: $(VENV)/.made setup.cfg pyproject.toml
	@echo "installing toolnexus and its development tools into $(VENV)"
	@$(PIP) install --no-build-isolation -e '.[dev]'
	@touch $@ $(VENV)/.made-run
