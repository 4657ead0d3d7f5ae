# make check   set up an environment in .venv and run the main job
# make test    lint, types and tests, in the same environment
# make lint    lint and types only
# make driver  build the C++ driver of docs/drivers as build/paged_driver, with $(CXX)
# make peers   an environment for other projects' managers in .peers; make peer-NAME: only for one of them
# make test-peers   the tests of those managers, also of vLLM's and SGLang's, which take long
# make clean   remove the environment and everything that was built

# Unset: the first Python on the PATH that is new enough. For another one: make check PYTHON=/path/to/python
PYTHON ?=
PYTEST_ARGS ?=
# Tests that run side by side: auto is one for each processor; 0 runs them one after the other, in one process.
JOBS ?= auto
# A real request trace in the Mooncake format, replayed by make check beside the built-in workload if there is one.
TRACE ?= $(wildcard ../shared/traces/mooncake_conversation.jsonl)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install -c constraints.txt
PACKAGES := spec model impl proofs cli
LINKS := $(PACKAGES:%=.links/kvspec/%)

unexport PYTHONPATH PYTHONHOME
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := check
.PHONY: check test test-peers lint links peers clean driver

check: $(VENV)/.runtime
	@$(BIN)/kvspec check $(if $(TRACE),--trace '$(TRACE)')

test: lint
	@$(BIN)/pytest --numprocesses $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.test links
	@$(BIN)/ruff check
	@$(BIN)/mypy -p kvspec

# A static checker does not know how setuptools maps the folders to sub-packages; links say it again.
links: $(LINKS)

$(LINKS): .links/kvspec/%:
	@mkdir -p $(@D)
	@ln -sfn ../../$* $@

# kvspec is not installed for this: the links will do.
INSTALL_PEERS := PYTHONPATH=.links $(BIN)/python -m kvspec.impl.adapters.install
peers: $(VENV)/.python links
	@$(INSTALL_PEERS)

peer-%: $(VENV)/.python links
	@$(INSTALL_PEERS) $*

test-peers: $(VENV)/.test links
	@$(INSTALL_PEERS)
	@$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile tests/peers $(PYTEST_ARGS)

$(VENV)/.python:
	@set -e; \
	for python in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "setting up $(VENV) with $$("$$python" --version)"; \
			"$$python" -m venv --clear $(VENV); touch $@; exit 0; \
		fi; \
	done; \
	echo "kvspec needs Python 3.11 or newer; found none as $(or $(PYTHON),python3.11 or python3)" >&2; exit 1

$(VENV)/.runtime: $(VENV)/.python pyproject.toml constraints.txt
	@echo "installing kvspec and what it needs into $(VENV); the first time takes a minute or more"
	@$(PIP) -e .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) -e '.[test]'
	@touch $@

driver: build/paged_driver

build/paged_driver: $(wildcard docs/drivers/cpp/*)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O2 -Wall -Wextra -o $@ docs/drivers/cpp/paged_driver.cpp

clean:
	rm -rf $(VENV) .peers .links build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
