PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: check fmt lint type floors test bench crash demo

check: lint type floors test  ## what CI runs
	@echo "check: all good"

$(VENV)/.made: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

fmt: $(VENV)/.made  ## write the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.made
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: $(VENV)/.made
	$(BIN)/mypy

floors: $(VENV)/.made
	$(BIN)/lint-imports

test: $(VENV)/.made  ## the tests
	$(BIN)/python -m pytest -q -m "not slow"

crash: $(VENV)/.made  ## long suites: races and properties with many more examples
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q tests/machine tests/threads

bench: $(VENV)/.made  ## ratios against what a careful user would write by hand
	$(BIN)/python -m tests.bench

demo: $(VENV)/.made  ## the main job, without a key
	@$(BIN)/python docs/examples/approve_charge.py $(ARGS)
