# `make demo` and `make test` set up everything they need, once, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test format clean

demo: $(READY)
	$(BIN)/bso demo

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .ruff_cache .import_linter_cache

# torch comes first, alone and by its exact version: a range asked for by another package could pull in a newer build.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard src/bso/engine/*.[ch])
	@echo "Setting up $(VENV) (once, a few minutes) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable ".[dev]"
	@touch $(READY)
