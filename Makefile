# Every target sets up what it needs: a fresh machine has git, make and Python 3.11, nothing else.
.DEFAULT_GOAL := help

VENV ?= .venv
BIN  := $(VENV)/bin
# Tests wait for programs and disks much of their time, so each core carries two test processes.
JOBS ?= $(shell expr 2 \* `getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2`)
ARGS ?=

# Tests make and remove a million small files. In memory, where 3 GB of it are free for files and programs may be executed there, that
# takes a sixth less time than on a disk.
SCRATCH ?= $(shell grep -qs ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || \
	df --output=avail -m /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 3000 {print "/dev/shm"}')

# Each test process rewrites the assertions of every test file, and starts hundreds of programs of ours: they must be able to keep bytecode.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough. A recursive variable: looked for only when the virtualenv is to be made.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)

# pip is the last thing `venv` puts into a virtualenv, so where it is, the virtualenv is whole.
PIP        := $(BIN)/pip
INSTALLED  := $(VENV)/.installed
DOCS_READY := $(VENV)/.installed-docs
INSTALL    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The frameworks that sessions plug into are large, and have an environment of their own.
TOOLS_VENV  ?= .venv-tools
TOOLS_READY := $(TOOLS_VENV)/.installed

.PHONY: help test bytecode tools agents lint demo bench docs dist compat field histories corpus cheats clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  PYTHON=python3.12   the interpreter to make $(VENV) with (3.11 or newer)"
	@echo "  JOBS=4              test processes"
	@echo "  SCRATCH=            no directory in memory for the files of tests"
	@echo "  ARGS='-k promote'   more arguments for pytest (test) or the benchmarks"

test: $(INSTALLED) ## check style and types, then run all tests in random order
	@$(MAKE) --no-print-directory --jobs=2 lint bytecode
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/pytest -n $(JOBS) --dist=worksteal --durations=15 $(ARGS)

tools: $(TOOLS_READY) ## run the tests inside Inspect, pydantic-ai, deepagents, MCP and others (an environment of their own, 1.4 GB)
	@$(TOOLS_VENV)/bin/python -m pytest -n $(JOBS) tests/tools

agents: $(INSTALLED) ## install six published coding agents with npm (1.4 GB, in .venv-agents), and run the tests that have them work
	@$(BIN)/python -m tests.real_agents.table
	@$(BIN)/pytest -n $(JOBS) tests/real_agents tests/docs/test_agents_page.py $(ARGS)

# In a fresh checkout every test process would rewrite all test files by itself. One process does it here, beside the check of types.
bytecode: $(INSTALLED)
	@$(BIN)/pytest --collect-only -qq >/dev/null || true

lint: $(INSTALLED) ## check style (ruff) and types (mypy)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

demo: $(INSTALLED) ## half a minute: three tests, a session from start to eviction, a verdict, an eval of ten samples
	@$(BIN)/python -m examples.demo

bench: $(INSTALLED) ## measure the engine beside plain git, in one run
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(DOCS_READY) ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict

dist: $(INSTALLED) ## build the wheel and the sdist into dist/
	@rm -rf dist && $(BIN)/python -m hatchling build

compat: $(INSTALLED) ## run the wheel under each pytest with its neighbours, and write docs/reference/compatibility.md (10 minutes)
	@$(BIN)/python -m tests.quality.compatibility

field: $(INSTALLED) ## put published worktree tools to the worktree clauses, and write docs/reference/field.md (half an hour; needs root)
	@$(BIN)/python -m tests.quality.field $(ARGS)

histories: $(INSTALLED) ## make and validate suites of the releases of four published packages, and write their table (five minutes)
	@$(BIN)/python -m tests.quality.histories $(ARGS)

corpus: $(INSTALLED) ## judge the tests of eight published packages beside plain pytest, and write docs/reference/evals-corpus.md (seven minutes)
	@$(BIN)/python -m tests.quality.corpus $(ARGS)

cheats: $(INSTALLED) ## try results that cheat hidden tests, and write docs/reference/evals-cheats.md (ten minutes; needs root)
	@PYTHONPATH=tests $(BIN)/python -m tests.quality.cheats_page

clean: ## remove the virtualenv and everything generated
	rm -rf $(VENV) $(TOOLS_VENV) .venv-agents .venv-field .venv-corpus runs/demo site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .tox
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml | $(PIP)
	@echo "Installing pytest-gittrix and its tools into $(VENV) ..."
	@$(INSTALL) --editable ".[test,lint]"
	@touch $@

$(TOOLS_READY): pyproject.toml | $(PIP)
	@echo "Installing the frameworks that sessions plug into (1.4 GB, some minutes) into $(TOOLS_VENV) ..."
	@test -x $(TOOLS_VENV)/bin/pip || $(BIN)/python -m venv $(TOOLS_VENV)
	@$(TOOLS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[tools]"
	@# The examples of this package are in its source distribution alone; tests/tools/test_acp_examples.py runs them.
	-@acp=$$($(TOOLS_VENV)/bin/python -m pip freeze | grep '^agent-client-protocol==') && $(TOOLS_VENV)/bin/python -m pip download --quiet \
		--disable-pip-version-check --no-deps --no-binary agent-client-protocol --dest $(TOOLS_VENV)/sdists "$$acp"
	@touch $@

$(DOCS_READY): pyproject.toml | $(INSTALLED)
	@echo "Installing the documentation tools into $(VENV) ..."
	@$(INSTALL) --editable ".[docs]"
	@touch $@

$(PIP):
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11 or newer was found on PATH; pytest-gittrix needs one." >&2; \
		echo "Install it, or say where it is: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) does not run, or is older than Python 3.11, which pytest-gittrix needs." >&2; \
		echo "Say which to use: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtualenvs: its ensurepip module is missing." >&2; \
		echo "Debian and Ubuntu ship it apart: install python3-venv, then run make again." >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)
