# `make bench` and `make test` set up everything they need. `make help` lists the targets.
PYTHON ?= python3
# Another build of torch, for an older CUDA driver for instance: make setup TORCH=torch==2.11.0
# It is kept in $(READY), and so used until another one is named.
READY := .venv/.ready
TORCH_ASKED := $(TORCH)
TORCH_KEPT := $(shell cat $(READY) 2>/dev/null)
# With a GPU: what every figure in this repository was measured with. Without one nothing is timed, and
# the newest that is tested has a small CPU build.
TORCH_DEFAULT := $(if $(wildcard /dev/nvidia0),torch==2.11.0,torch==2.13.0)
TORCH ?= $(or $(TORCH_KEPT),$(TORCH_DEFAULT))
# Used only when the chosen torch does not bring a Triton of its own.
TRITON ?= triton==3.6.0

BIN := .venv/bin
# Python compiles a module when it is first imported: most of 20,000 never are.
INSTALL := $(BIN)/pip install --no-compile
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help setup setup-fleet bench test test-slow test-cpu test-all test-gpu lint pack data docs page new

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## virtual environment in .venv, 3 GB; again when pyproject.toml or TORCH changes

ifneq ($(or $(TORCH_ASKED),$(TORCH_KEPT)),$(TORCH_KEPT))
.PHONY: $(READY)
endif

$(READY): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up .venv with $(TORCH) and what this repository needs: 3 GB, some minutes."
	@rm -f $@
	$(PYTHON) -m venv .venv
	$(INSTALL) "$(TORCH)"  # not --quiet: it is most of the 3 GB, and pip shows how far it is
	$(BIN)/python -c 'import triton' 2>/dev/null || $(INSTALL) --quiet "$(TRITON)"
	$(INSTALL) --quiet --editable '.[dev]'
	@if { nvidia-smi || [ -e /dev/nvidia0 ]; } >/dev/null 2>&1 && \
	  ! $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  echo "This machine has a GPU that $(TORCH) cannot use: everything would run on the CPU."; \
	  echo "Is its driver too old? nvidia-smi shows which CUDA it can do."; \
	  echo "https://pytorch.org/get-started lists builds."; \
	  echo "Then, for instance: make setup TORCH=torch==2.11.0"; \
	fi
	@echo "$(or $(TORCH_ASKED),$(TORCH_KEPT))" > $@

setup-fleet: $(READY) ## Ray beside it, for moebench run --ray; on every node
	$(INSTALL) --quiet --editable '.[fleet]'

bench: $(READY) ## the main job: every solution on every workload, one table
	$(BIN)/moebench run

test: $(READY) ## the fast tests, on all cores: a few minutes on two
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(READY) ## the others: every tile compiled, every size interpreted
	$(PYTEST) -m "slow and not gpu"

test-cpu: $(READY) ## both, all that need no CUDA device
	$(PYTEST) -m "not gpu"

test-all: $(READY) ## all tests that this machine can run
	$(PYTEST)

test-gpu: $(READY) ## the tests that need a CUDA device, one after the other
	$(BIN)/python -m pytest -m gpu

lint: $(READY) ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check examples integrations scripts setup.py solutions tests tools

new: $(READY) ## start a solution: make new NAME=mine; FROM=triton or a solution to copy, AUTHOR=you
	$(BIN)/moebench new $(NAME) $(if $(FROM),--from $(FROM)) $(if $(AUTHOR),--author "$(AUTHOR)")

pack: $(READY) ## solutions/packed/ and blob/: all that flashinfer-bench run --local . needs
	$(BIN)/moebench pack
	$(BIN)/moebench data --write

data: $(READY) ## definitions/*/*.json, workloads/ and blob/, from the modules in definitions/
	$(BIN)/moebench data --write

docs: $(READY) ## the generated tables and figures of README.md and docs/
	$(BIN)/moebench docs

page: $(READY) ## site/index.html: the recorded results as a page to explore
	$(BIN)/moebench compare --html site/index.html
