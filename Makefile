# `make demo` and `make test` set up everything they need, once, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/pytest --numprocesses 2 --dist loadfile

# Triton, for Linux only, lies in a folder of its own: only the tests of its kernels can import it, so nothing else depends on it.
TRITON := $(abspath $(VENV))/triton
TRITON_READY := $(if $(filter Linux,$(shell uname -s)),$(TRITON)/.ready-3.9.0)
TRITON_TESTS := PYTHONPATH=$(TRITON) TRITON_INTERPRET=1 $(PYTEST) tests/gpu tests/kernels/test_launches.py

# Where `make reproduce` finds CIFAR-10 and Speech Commands; empty: what was downloaded before, or a download.
CIFAR10 ?=
SPEECH_COMMANDS ?=
TARGETS := table1 figure4 figure3 gradients regret table3 table4 ablation table5 figure5 table2

.PHONY: demo test triton wasm docs reproduce $(TARGETS:%=reproduce-%) format clean

demo: $(READY)
	$(BIN)/bsnn demo

test: $(READY) $(TRITON_READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(PYTEST)
	$(TRITON_TESTS)

# The last part of `make test`: the GPU's kernels in Triton's interpreter, and their machine code. Takes a minute.
triton: $(READY) $(TRITON_READY)
	$(TRITON_TESTS)

# The engine for browsers, which ships compiled; to be made again when the C of inference has changed. The compiler takes 440 MB.
wasm: $(READY)
	$(INSTALL) ziglang==0.17.0
	$(BIN)/python -m bsnn.deploy.engine.webassembly

# The documentation as a site. Its packages are installed for this target alone; it needs no torch, as sources are only read.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html; to search too, run '$(BIN)/python -m http.server --directory site' and open http://localhost:8000"

# Every table and figure at the scale that two cores finish, one target each. What was interrupted goes on.
reproduce: $(TARGETS:%=reproduce-%)
	$(BIN)/python benchmarks/document.py

reproduce-table2 reproduce-figure5 reproduce-ablation: DATA = $(CIFAR10)
reproduce-table5: DATA = $(SPEECH_COMMANDS)
$(TARGETS:%=reproduce-%): reproduce-%: $(READY)
	$(BIN)/bsnn reproduce $* --results benchmarks/results/reproduce --runs runs/reproduce $(if $(DATA),--data $(DATA))

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .ruff_cache .import_linter_cache

# torch comes first, alone and by its exact version: a range asked for by another package could pull in a newer build.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard $(addsuffix /*.[ch],src/bsnn/csrc src/bsnn/kernels/csrc src/bsnn/deploy/engine/csrc))
	@echo "Setting up $(VENV) (once, a few minutes) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable ".[dev]"
	@touch $(READY)

# A download of 200 MB, which takes a gigabyte when it is unpacked.
$(TRITON)/.ready-%: | $(READY)
	rm -rf $(TRITON)
	$(INSTALL) --target $(TRITON) --no-deps triton==$*
	@touch $@

$(DOCS_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[docs]"
	@touch $(DOCS_READY)
