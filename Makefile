# Needs python3 (3.11 or newer), make and the package index; everything else is installed here.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.stamp
ORDERS ?=
ARGS ?=
# Processes that share the suite, 0 for none: most of its time it waits for workers and for locks.
# By files, since the tests of one may share a database, a worker or a run of something long.
WORKERS ?= 3
# Where a tool imports the settings without needing a database.
NO_DATABASE := DATABASE_URL=postgresql://nobody@127.0.0.1:1/none

.PHONY: help venv test coverage stress lint docs demo bench wheel-test test-matrix stop clean

help:
	@echo 'make demo         the shop on durable jobs, until Ctrl-C (ORDERS=file.csv, ARGS=--once)'
	@echo 'make test         the whole suite, on a private PostgreSQL or DATABASE_URL'
	@echo 'make coverage     the same, slower, and which lines of the app it has run'
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
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

coverage: ARGS += --cov --cov-report=term
coverage: test

stress: $(STAMP)
	$(VENV)/bin/python -m pytest -m stress --timeout 1800 $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(NO_DATABASE) $(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python manage.py makemigrations --check --dry-run

docs: $(STAMP)
	$(VENV)/bin/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo 'docs/_build/html/index.html'

demo: $(STAMP)
	$(VENV)/bin/python -m testproject.demo $(if $(ORDERS),--orders '$(ORDERS)') $(ARGS)

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/run.py $(ARGS)

wheel-test: $(STAMP)
	rm -rf dist .venvs/wheel
	$(VENV)/bin/python -m pip wheel -qq --no-deps --wheel-dir dist .
	$(PYTHON) -m venv .venvs/wheel
	.venvs/wheel/bin/python -m pip install -qq "$$(echo dist/*.whl)[binary]"
	.venvs/wheel/bin/python -I .ci/check_wheel.py "$(CURDIR)/django_durable"

test-matrix:
	$(PYTHON) .ci/matrix.py all -- $(ARGS)

stop:
	$(VENV)/bin/python -m testproject.embedded stop

clean:
	[ ! -x $(VENV)/bin/python ] || $(VENV)/bin/python -m testproject.embedded remove
	rm -rf $(VENV) .venvs .local dist docs/_build .coverage .*_cache .hypothesis
	find . -name __pycache__ -type d -exec rm -rf {} +
