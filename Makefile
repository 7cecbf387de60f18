# Every target makes what it needs from a bare clone; nothing is installed twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test test-all quick fuzz check format docs site mutants bench bench-shift bench-speed bench-promises clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "acclimate needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt "setuptools>=77" wheel
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/acclimate demo --out demo

test: $(STAMP)
	$(BIN)/pytest --numprocesses 2 -m "not full"

# Also what needs a browser (Chromium), PostgreSQL and other large packages.
test-all: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[full]"
	$(BIN)/pytest --numprocesses 2

quick: $(STAMP)
	$(BIN)/pytest --numprocesses 2 --quiet -m "not slow and not full"

# Hostile inputs, some ten minutes on two cores; SEED=1 for others, CASES=500 for fewer.
fuzz: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(if $(SEED),--seed $(SEED)) $(if $(CASES),--cases $(CASES))

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --quiet tests/test_ladder.py tests/test_docs.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python docs/generate.py

# The documentation as pages: docs/_build/html/index.html. Its notebooks run; a warning is an error.
site: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable ".[site]"
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going docs docs/_build/html

bench: $(STAMP)
	$(BIN)/python benchmarks/digits.py

# DATA=folder: families made from its images instead of the embedded digits.
bench-shift: $(STAMP)
	$(BIN)/python benchmarks/shift.py $(DATA)

# DATA=folder: its JPEGs instead of those that it makes.
bench-speed: $(STAMP)
	$(BIN)/python benchmarks/speed.py $(if $(DATA),--data $(DATA))

# FILES="…": results of benchmarks/shift.py and benchmarks/rehearsed.py.
FILES ?= $(wildcard runs/bench-shift/shift.json runs/rehearsed/rehearsed.json)
bench-promises: $(STAMP)
	$(BIN)/python benchmarks/promises.py $(FILES) $(if $(CURVE),--curve $(CURVE))

# Does a test notice? ONLY='acclimate.learn.penalties*': those alone. Results are kept in mutants/.
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py $(ONLY)

clean:
	rm -rf $(VENV) demo runs mutants docs/_build
