# Everything sets itself up: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two steps: the demo needs less than the tests, the linters and the documents do.
DEMO := $(VENV)/.demo
INSTALLED := $(VENV)/.installed
# torch goes in first and by itself: asked for along with others, some indexes give another build.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Compiled kernels are kept here, one folder for each state of the sources: numba looks only at the
# file of a kernel, not at the files of the kernels it calls, and would reuse stale code.
SOURCES := $(sort $(shell find src -name '*.py'))
export NUMBA_CACHE_DIR := $(CURDIR)/.cache/numba/$(shell cat $(SOURCES) | cksum | cut -d' ' -f1)

.PHONY: help demo test test-long test-all check format docs dist bench bench-search bench-learning bench-serving bench-estimator bench-engines clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(DEMO): pyproject.toml constraints.txt
	@echo 'install what the demo needs: one to two minutes'
	$(PYTHON) -m venv $(VENV)
	$(PIP) '$(shell grep '^torch==' constraints.txt)'
	$(PIP) -e '.[demo]'
	touch $@

$(INSTALLED): $(DEMO)
	@echo 'install what tests, checks and documents need: about two minutes more'
	$(PIP) -e '.[dev]'
	touch $@

# With kernels where `flowhash` by itself looks for them, so that the search page need not compile.
demo: export NUMBA_CACHE_DIR :=
demo: $(DEMO) ## the whole job on handwritten digits: learn, compare, index, report, search page
	$(BIN)/flowhash demo

# Threads that spin while they wait make a busy machine crawl; no test takes times.
test test-long test-all: export OMP_WAIT_POLICY := passive

# Two processes, of which one that is done takes tests from the other; TESTS=tests/table runs a part.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

test: $(INSTALLED) ## the tests that every change must pass, in about nine minutes
	@echo 'the quick tests: about 9 minutes on two cores, the first of them compiling kernels'
	$(PYTEST) -m 'not slow and not long' $(TESTS)

test-long: $(INSTALLED) ## what CI runs beside them: long pages, accidents of clusters and servers
	@echo 'the long tests: about 6 minutes on two cores'
	$(PYTEST) -m long $(TESTS)

test-all: $(INSTALLED) ## all tests, the long and the slow ones too
	@echo 'all tests: about an hour on two cores'
	$(PYTEST) $(TESTS)

check: $(INSTALLED) ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(INSTALLED) ## the documents as a site, in .cache/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir .cache/site

dist: $(INSTALLED) ## wheel and sdist, checked, then the demo from the wheel in a fresh environment
	rm -rf .cache/dist .cache/fresh
	$(BIN)/python -m build --outdir .cache/dist
	$(BIN)/python -m twine check --strict .cache/dist/*
	$(PYTHON) -m venv .cache/fresh
	.cache/fresh/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '$(shell grep '^torch==' constraints.txt)'
	.cache/fresh/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls .cache/dist/*.whl)[demo]"
	cd .cache/fresh && rm -rf demo && bin/flowhash --version && bin/flowhash demo --out demo

format: $(INSTALLED) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure the claims anew and write docs/results/
	$(BIN)/python -m benchmarks.solver.topk
	$(BIN)/python -m benchmarks.solver.run

bench-search: $(INSTALLED) ## the same for search and its peers, on both kinds of processors: downloads GloVe, takes an hour and a half
	$(PIP) -e '.[bench-search]'
	$(BIN)/python -m benchmarks.search.run
	$(BIN)/python -m benchmarks.search.run --avx2
	$(BIN)/python -m benchmarks.quantised.run
	$(BIN)/python -m benchmarks.vectors.timing

bench-learning: $(INSTALLED) ## the same for learning: the gated distance, the solver's share, NIN
	$(BIN)/python -m benchmarks.learning.run

bench-serving: $(INSTALLED) ## the same for the server under load: a million items, up to a thousand connections
	$(BIN)/python -m benchmarks.serving.run

bench-estimator: $(INSTALLED) ## the same for FlowHasher: 50,000 vectors of 512 numbers
	$(BIN)/python -m benchmarks.estimator.run

bench-engines: $(INSTALLED) ## the same for PostgreSQL, Ray and ten million items: a quarter of an hour, 10 GB of disk
	$(BIN)/python -m benchmarks.engines.run

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
