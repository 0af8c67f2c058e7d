# Two commands do everything: `make profile` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUN_ARGS ?=
# Twice as many processes as cores: a third of the time they wait for tools, servers and time limits.
TEST_ARGS ?= -n 4 --dist loadfile
MODULE ?= analysis --most 10

.DEFAULT_GOAL := help
.PHONY: help profile test lint install bench docs check-engines mutants clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The stamp is newer than everything the installation depends on, so a second `make` does not reinstall.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python >= 3.11 is needed (set PYTHON=…)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "pip" setuptools wheel
	@# torch first and alone: asked for as a dependency it would bring another build and gigabytes with it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable ".[run,dev,docs,mcp,ncu,otel,telemetry,serve]"
	@touch $@

install: $(INSTALLED)  ## create the virtual environment with pinned dependencies

profile: $(INSTALLED)  ## profile the default workload on whatever device is there; RUN_ARGS="key=value …" to change it
	@$(BIN)/llm-perf-opt run $(RUN_ARGS)

lint: $(INSTALLED)  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# LINT= leaves out the checks, for a second run of tests in one job.
LINT ?= lint
test: $(LINT) $(INSTALLED)  ## lint and the whole test suite
	@# Tests read and write UTF-8, whatever the locale; those of other locales set their own.
	PYTHONUTF8=1 $(BIN)/python -m pytest $(TEST_ARGS)

docs: $(INSTALLED)  ## the documentation of this version as a site, links checked: site/index.html
	$(BIN)/python scripts/build-docs.py

check-engines: $(INSTALLED)  ## step labels of the newest vLLM and SGLang (downloads their source, installs nothing)
	$(BIN)/python scripts/check-engines.py

bench: $(INSTALLED)  ## benchmarks against peers (minutes; installs peers in their own environments)
	$(BIN)/python -m benchmarks

mutants: $(INSTALLED)  ## on demand: would the tests notice a changed operator? MODULE=analysis/ledger.py
	$(BIN)/python scripts/mutation-run.py $(MODULE)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
