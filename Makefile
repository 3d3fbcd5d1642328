# Everything here runs in the virtual environment .venv, made by Python 3.11 or newer:
#   make demo            or, with another Python:   make demo PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
ON_TWO_CORES := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := OMP_NUM_THREADS=1 $(ON_TWO_CORES)
# uv takes a third of the CPU time of pip, but ignores its settings: pass on those that say where packages come from.
# The environment overrides files, so it comes last. With "unsafe-best-match", uv compares all indexes, as pip does.
PIP_SETTINGS = set -a; eval "$$($(BIN)/python -m pip config list | sort -r | sed -nE \
	-e 's/.*\.index-url=/UV_DEFAULT_INDEX=/p' -e 's/.*\.extra-index-url=/UV_EXTRA_INDEX_URL=/p' \
	-e 's/.*\.find-links=/UV_FIND_LINKS=/p' -e 's/.*\.constraint=/UV_CONSTRAINT=/p')";
# The tests of `make portable`. torch, oneDNN and MKL each choose their instructions, which differ in rounding.
NUMBERS := tests/test_numerics.py tests/models tests/tools/test_conversion.py tests/paper/test_toeplitz.py \
	tests/training/test_trainer.py tests/test_adapt.py tests/tools/test_question_answering.py tests/paper/test_models.py \
	-k "not inductor"
# Files with words for readers. The log keeps its entries as they were written; the others quote wrong words.
PROSE := '*.py' '*.md' '*.yaml' '*.yml' '*.toml' ':!docs/log' ':!CONTRIBUTING.md' ':!tests/words.py' ':!tests/test_words.py'
SSE4 := ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2
AVX2 := ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
# The seed of the random test order; make portable SEED=... repeats an order.
SEED := $(shell date +%s)

.DEFAULT_GOAL := help
.PHONY: help install demo replicate test test-heavy test-fast portable coverage conformance package compat integrations xla docs lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## install the package and everything for its scripts and tests into .venv

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "hf_gmlp needs Python 3.11 or newer; choose one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	@command -v uv > /dev/null || $(BIN)/python -m pip install --quiet uv
	@echo "Installing torch, transformers and the rest into .venv."
	$(PIP_SETTINGS) PATH="$$PATH:$(BIN)" UV_INDEX_STRATEGY=unsafe-best-match \
		uv pip install --quiet --python $(BIN)/python --editable ".[export,serve]" --group dev --group docs
	@touch $(INSTALLED)

demo: $(INSTALLED) ## train a small gMLP on Python's documentation and show what it learned, in 3 minutes on two AVX2 cores (AMD EPYC)
	$(BIN)/python -m examples.demo

replicate: $(INSTALLED) ## run the paper's comparisons at a small size; ARGS="--help" lists the options
	$(BIN)/python -m paper replicate $(ARGS)

test: $(INSTALLED) ## run the tests, in 4 to 6 minutes on two AVX2 cores (AMD EPYC)
	$(PYTEST) -m "not heavy"

test-heavy: $(INSTALLED) ## run the tests that `make test` omits: several processes, exports, benchmarks
	$(PYTEST) -m heavy

test-fast: $(INSTALLED) ## run the fast tests, three quarters of the total
	$(PYTEST) -m "not slow and not heavy"

portable: $(INSTALLED) ## run numerical tests with the instructions of older processors, and in a random order
	$(SSE4) $(PYTEST) $(NUMBERS)
	@echo "In a random order: SEED=$(SEED)"
	$(AVX2) OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(ON_TWO_CORES) -p randomly --randomly-seed=$(SEED) $(NUMBERS)

coverage: $(INSTALLED) ## run all tests, and report the lines of hf_gmlp that no test reaches
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

conformance: $(INSTALLED) ## run transformers' common tests on the models (fetches its source once)
	$(BIN)/python -m tests.conformance.run

package: $(INSTALLED) ## build the wheel, and test it where only torch and transformers are installed
	$(BIN)/python -m tests.packaging.run $(DIST)

compat: ## run tests with other versions in separate environments: the oldest, or those of PYTHON=python3.13
	$(PYTHON) -m tests.packaging.compat $(ARGS)

integrations: ## run tests with sentence-transformers, TRL and others, in a separate environment
	$(PYTHON) -m venv build/integrations-venv
	build/integrations-venv/bin/python -m pip install --quiet --upgrade pip
	build/integrations-venv/bin/python -m pip install --quiet --editable ".[train,vision]" --group dev --group integrations
	OMP_NUM_THREADS=1 build/integrations-venv/bin/python -m pytest tests/test_integrations.py tests/test_adapt.py
	# DeepSpeed is installed last, since other libraries import it if it is present.
	build/integrations-venv/bin/python -m pip install --quiet --editable ".[deepspeed]"
	OMP_NUM_THREADS=1 build/integrations-venv/bin/python -m pytest tests/training/test_launch.py -k deepspeed

xla: ## train on an XLA device (the CPU if there is no TPU), in a separate environment with torch 2.9
	$(PYTHON) -m venv build/xla-venv
	build/xla-venv/bin/python -m pip install --quiet --editable ".[train,vision,xla]" pytest
	PJRT_DEVICE=CPU OMP_NUM_THREADS=1 XLA_FLAGS=--xla_backend_optimization_level=0 \
		build/xla-venv/bin/python -m pytest tests/test_xla.py

docs: $(INSTALLED) ## build the documentation site in build/site, and check its links
	$(BIN)/properdocs build --quiet --strict

lint: $(INSTALLED) ## check style, format, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files -z | xargs -0 $(BIN)/codespell
	git ls-files -z $(PROSE) | xargs -0 $(BIN)/python tests/words.py

format: $(INSTALLED) ## fix style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and all build outputs
	rm -rf .venv build dist .pytest_cache .ruff_cache .coverage *.egg-info
