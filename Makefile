# Every target sets up what it needs first: a bare clone with Python 3.11 or newer, git and make is enough.
# PYTHON=/path/to/python3 chooses the interpreter for .venv, WORKERS=4 the processes that run the tests.

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench soak notebooks lock clean

RUN := .venv/bin
WORKERS ?= 2
export PYTHON

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## make .venv with the locked dependencies, and a Java where none fits
	@.ci/setup

demo: setup ## a git history as upserts, differenced locally and on Spark, every retraction checked
	$(RUN)/ddflow demo

# The kernels first, with bounds checks and without the compiler: when they are wrong, nothing else is worth reading.
test: setup lint ## lint, then every test: kernels three ways, properties, doctests, Spark, notebooks
	.ci/variant NUMBA_BOUNDSCHECK=1
	.ci/variant NUMBA_DISABLE_JIT=1
	$(RUN)/python -m pytest --numprocesses=$(WORKERS)

lint: setup ## style, formatting and types
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: setup ## ddflow beside its peers on the same upserts
	$(RUN)/python bench/upsert.py

soak: setup ## every test and those marked soak, with many more random examples; takes long
	DDFLOW_SOAK=1 $(RUN)/python -m pytest --numprocesses=$(WORKERS) -m "soak or not soak" tests

notebooks: setup ## run the notebooks and keep their output
	$(RUN)/python tests/test_notebooks.py

lock: ## choose versions anew (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --upgrade --quiet --output-file requirements.lock

clean: ## remove .venv and everything a run left behind
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist out artifacts spark-warehouse metastore_db
	rm -f derby.log
	find ddflow spark_bridge tests bench -name __pycache__ -prune -exec rm -rf {} +
