# mimetic: each target sets up what it needs by itself, in .venv, and skips that when nothing changed.
# Needs: Python 3.11 to 3.13 with venv, make, and the package registry that pip is set up for.
#
# Variables: PYTHON (interpreter), TORCH (version of torch), VENV (.venv), WORKERS (test processes), ARGS (for pytest or `mimetic demo`).

VENV ?= .venv
WORKERS ?= 2
ARGS ?=
export VENV PYTHON TORCH

BIN = $(VENV)/bin
setup = @scripts/setup.sh

.DEFAULT_GOAL := help
.PHONY: help demo demo-recording test check docs format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## record in a simulated cell, check, plan, train, count successes, show the report
	$(setup) report sim
	@echo 'The command mimetic is in $(BIN); `. $(BIN)/activate` puts it on the path of this terminal.'
	@$(BIN)/mimetic demo $(ARGS)

demo-recording: ## train a small policy on a real recording, compare it with what was recorded
	$(setup) report
	@PATH="$(abspath $(BIN)):$$PATH" scripts/demo_recording.sh

# worksteal: by the default, one process ended minutes before the other, which had all tests of torch's compiler left.
test: ## run the tests (no network, no GPU, no account)
	$(setup) check ray report test
	$(BIN)/python -m pytest -n $(WORKERS) --dist=worksteal -rs --ignore=tests/docs $(ARGS)

check: ## lint, formatting, types, generated reference, and every code block of the docs
	$(setup) check ray report test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python -m pytest -n $(WORKERS) tests/docs $(ARGS)

docs: ## write the generated pages of docs/reference again
	$(setup) check ray report test
	$(BIN)/python scripts/reference.py

format: ## put the code into the house format
	$(setup) check ray report test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: ## measure mimetic (and LeRobot beside it, where MIMETIC_PEER_PYTHON names its Python)
	$(setup) check ray report test
	@for script in $$(grep -l '^"""Claim:' benchmarks/*.py); do \
	  echo "== $$script"; $(BIN)/python -m "benchmarks.$$(basename "$$script" .py)" || exit 1; done

clean: ## remove the environment and everything that the targets made (not outputs/)
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
