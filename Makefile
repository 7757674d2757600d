# Every target sets up what it needs first: a bare clone with Python 3.11 or newer, git and make is enough.
# PYTHON=/path/to/python3 chooses the interpreter for .venv, WORKERS=4 the processes that run the tests.

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cdc check test lint docs bench bench-compare soak mutants golden messages notebooks release lock clean

RUN := .venv/bin
WORKERS ?= 2
MINUTES ?=
CHECKED := tests/test_house.py tests/test_outside.py tests/test_prose.py tests/laws/test_found.py \
  $(wildcard tests/kernels/test_kernels_*.py) tests/laws/test_laws.py tests/laws/test_merging_laws.py \
  tests/expressions/test_expressions_law.py tests/partitions/test_partitions_law.py ddflow
export PYTHON
# Else every process that a test starts would compile the package from its source, and pytest would all tests.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv with the locked dependencies, and a Java where none fits
	@.ci/setup

demo: setup ## a git history as upserts, differenced locally and on Spark, every retraction checked
	$(RUN)/python examples/git/demo.py

demo-cdc: setup ## a live Postgres into a view, and by Debezium into Delta Lake, over kills, checked by Postgres
	$(RUN)/python examples/cdc/live.py
	@.ci/engine
	$(RUN)/python examples/debezium_to_delta/live_debezium.py

check: setup lint ## a minute: lint, types, kernels, doctests, and the laws on a tenth of their examples; no Spark
	$(RUN)/python -m pytest --numprocesses=$(WORKERS) -m "not soak and not spark" $(CHECKED)

test: setup ## lint and every test but those of a soak: kernels three ways, properties, doctests, Spark, notebooks
	@.ci/test $(WORKERS)

lint: setup ## style, formatting, types and spelling
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-logo --cache-dir .ruff_cache/imports
	$(RUN)/codespell

docs: setup ## the site, in docs/_build/html; without the network, and a warning is an error
	$(RUN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

bench: setup ## a quarter of an hour: ddflow beside its peers, one report with a picture
	$(RUN)/python bench all

bench-compare: setup ## two commits side by side: make bench-compare A=main~5 B=main
	$(RUN)/python bench compare $(A) $(B)

soak: setup ## long searches in random order, for so long: make soak MINUTES=60; without a limit for days
	DDFLOW_SOAK=1 DDFLOW_MINUTES=$(MINUTES) $(RUN)/python -m pytest --numprocesses=$(WORKERS) \
	  -m "soak or hypothesis or sampled" tests
	cd bench && for file in [a-z]*.py; do PYTHONPATH=.. ../$(RUN)/python -m doctest $$file || exit 1; done

mutants: setup ## small random changes of the code, and which tests notice them; goes on where it was stopped
	$(RUN)/python tests/mutants.py

golden: setup ## record anew what users see: public names, help texts, answers
	$(RUN)/python tests/test_outside.py

messages: setup ## record anew the texts of errors that tests see
	$(RUN)/python tests/support/messages.py

notebooks: setup ## run the notebooks and keep their output
	PYTHONPATH=examples/cdc:tests/support $(RUN)/python tests/test_notebooks.py

release: setup ## build the wheel and the sdist into dist/, and try them in fresh environments
	$(RUN)/python .ci/package.py --keep dist

lock: ## choose versions anew (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade --quiet --output-file requirements.lock

clean: ## remove .venv and everything a run left behind
	rm -rf docs/_build docs/_outside .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist out artifacts spark-warehouse metastore_db
	rm -f derby.log
	find ddflow spark_bridge examples tests bench -name __pycache__ -prune -exec rm -rf {} +
