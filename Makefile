# Everything sets itself up: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# torch goes in first and by itself: asked for along with others, some indexes give another build.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Compiled kernels are kept here, one folder for each state of the sources: numba looks only at the
# file of a kernel, not at the files of the kernels it calls, and would reuse stale code.
SOURCES := $(sort $(shell find src -name '*.py'))
export NUMBA_CACHE_DIR := $(CURDIR)/.cache/numba/$(shell cat $(SOURCES) | cksum | cut -d' ' -f1)

.PHONY: help demo test test-all check format bench bench-search bench-learning clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(shell grep '^torch==' constraints.txt)'
	$(PIP) -e '.[dev]'
	touch $@

demo: $(INSTALLED) ## see the solver and the table at work on handwritten digits
	$(BIN)/flowhash demo

test: $(INSTALLED) ## the tests that every change must pass
	$(BIN)/python -m pytest -q -m 'not slow'

test-all: $(INSTALLED) ## all tests, the slow ones too
	$(BIN)/python -m pytest -q

check: $(INSTALLED) ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(INSTALLED) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure the claims anew and write docs/results/
	$(BIN)/python benchmarks/topk.py
	$(BIN)/python benchmarks/solver.py

bench-search: $(INSTALLED) ## the same for search: downloads hnswlib and GloVe, takes half an hour
	$(PIP) -e '.[bench-search]'
	$(BIN)/python benchmarks/search.py

bench-learning: $(INSTALLED) ## the same for learning: the gated distance, the solver's share, NIN
	$(BIN)/python benchmarks/learning.py

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
