# `make bench` and `make test` set up everything they need. `make help` lists the targets.
PYTHON ?= python3
# Another build of torch, for an older CUDA driver for instance: make setup TORCH=torch==2.11.0
TORCH ?= torch==2.13.0
# Used only when the chosen torch does not bring a Triton of its own.
TRITON ?= triton==3.6.0

BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup pack definitions workloads bench test lint docs readme profile tune sweep page examples plots w16a16 mxfp8

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## virtual environment in .venv; done again only when pyproject.toml changes

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/pip install --quiet "$(TRITON)"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

pack: $(READY) ## solutions/packed/ and blob/: all that flashinfer-bench run --local . needs
	$(BIN)/python scripts/pack_solution.py
	$(BIN)/python scripts/make_workloads.py

definitions: $(READY) ## definitions/*/: FIB JSON from the readable references
	$(BIN)/python scripts/make_definitions.py

workloads: $(READY) ## workloads/ and blob/: what the solutions are run on
	$(BIN)/python scripts/make_workloads.py

bench: $(READY) ## the main job: every solution on every workload, one table
	$(BIN)/python scripts/run_local.py

test: $(READY) ## the tests, on all cores; those that need a GPU one after the other
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

lint: $(READY) ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check definitions scripts solutions tests

docs: readme plots page examples profile tune sweep w16a16 mxfp8 ## everything that holds a figure, from traces/ and docs/profile/

readme: $(READY) ## the tables in README.md and docs/backends.md, from traces/ and solution.toml
	$(BIN)/python scripts/update_readme.py
	$(BIN)/python scripts/update_backends.py

profile: $(READY) ## the tables in docs/profile.md, from docs/profile/
	$(BIN)/python scripts/update_profile.py

tune: $(READY) ## the tables in docs/tune.md, from docs/tune/
	$(BIN)/python scripts/update_tune.py

sweep: $(READY) ## the tables and pictures of docs/sweep.md, from docs/sweep/
	$(BIN)/python scripts/update_sweep.py

page: $(READY) ## docs/results.html: the results as a page to explore, from traces/
	$(BIN)/python scripts/results_page.py

examples: $(READY) ## the commands' output in docs/, from traces/
	$(BIN)/python scripts/update_examples.py

plots: $(READY) ## the pictures in docs/, from traces/ and docs/profile/
	$(BIN)/python scripts/plot.py

w16a16: $(READY) ## docs/w16a16.md: the bf16 layer's tables and picture, from traces/ and docs/w16a16_launches.json
	$(BIN)/python scripts/update_w16a16.py

mxfp8: $(READY) ## the tables in docs/mxfp8.md, from traces/ and docs/profile/mxfp8/
	$(BIN)/python scripts/update_mxfp8.py
