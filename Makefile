# Needs python3 (3.11 or newer), make and the package index; everything else is installed here.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.stamp
ORDERS ?=
ARGS ?=
# Processes that share the suite, 0 for none.
WORKERS ?= 0
# Where a tool imports the settings without needing a database.
NO_DATABASE := DATABASE_URL=postgresql://nobody@127.0.0.1:1/none

.PHONY: help venv test stress lint docs demo bench wheel-test test-matrix stop clean

help:
	@echo 'make demo         the shop on durable jobs, until Ctrl-C (ORDERS=file.csv, ARGS=--once)'
	@echo 'make test         the whole suite, on a private PostgreSQL or DATABASE_URL'
	@echo 'make stress       the long tests that load the machine'
	@echo 'make lint         style, types, layers, missing migrations'
	@echo 'make docs         the documentation, in docs/_build/html'
	@echo 'make bench        the benchmarks'
	@echo 'make wheel-test   the wheel in an empty environment'
	@echo 'make test-matrix  the suite on each pair of Python and Django that this machine has'
	@echo 'make stop         stop a private PostgreSQL that a killed process left'
	@echo 'make clean        remove everything that was made here, the development data too'

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.13 ...'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -qq --upgrade 'pip>=25.1'
	$(VENV)/bin/python -m pip install -qq --editable . --group test --group lint --group docs
	@touch $@

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --cov --cov-report=term $(ARGS)
