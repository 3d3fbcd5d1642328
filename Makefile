# Everything here runs in a virtual environment of its own, .venv, made with any Python from 3.11 on:
#   make demo            or, with another Python:   make demo PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo replicate test conformance package compat integrations docs lint format clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## install the package and all that its scripts and tests need into .venv

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hf_gmlp needs Python 3.11 or newer; name one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing torch, transformers and the rest into .venv; this takes a minute or two."
	$(BIN)/python -m pip install --quiet --editable ".[dev,docs,export,serve]"
	@touch $(INSTALLED)

demo: $(INSTALLED) ## train a small gMLP on the reference of Python, in minutes, and see what it learned
	$(BIN)/python examples/demo.py

replicate: $(INSTALLED) ## run the paper's comparisons in small; ARGS="--help" says how
	$(BIN)/python paper/replicate.py $(ARGS)

test: $(INSTALLED) ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

conformance: $(INSTALLED) ## run transformers' own common tests on our models (fetches its source once)
	$(BIN)/python -m tests.conformance.run

package: $(INSTALLED) ## build the wheel, and use it where only torch and transformers are installed
	$(BIN)/python -m tests.packaging.run $(DIST)

compat: $(INSTALLED) ## run tests with the oldest and newest torch and transformers, each in an environment of its own
	$(BIN)/python -m tests.packaging.compat $(ARGS)

integrations: ## run tests with sentence-transformers, TRL and others, in an environment of its own
	$(PYTHON) -m venv build/integrations-venv
	build/integrations-venv/bin/python -m pip install --quiet --editable ".[dev,integrations]"
	OMP_NUM_THREADS=1 build/integrations-venv/bin/python -m pytest tests/test_integrations.py tests/test_adapt.py

docs: $(INSTALLED) ## build the documentation site into build/site, and check its links
	$(BIN)/mkdocs build --quiet --strict

lint: $(INSTALLED) ## check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED) ## put style and format right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and everything built
	rm -rf .venv build dist .pytest_cache .ruff_cache *.egg-info
