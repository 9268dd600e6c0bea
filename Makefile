# Every command there is. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:

PYTHON ?= python3
WORKERS ?= 3
ARGS ?=

# Compiled once, not at every start.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.ready

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Prepare .venv with the package, its extras and the tools (from requirements.lock)
	@:

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh
	@touch $@

.PHONY: dev
dev: setup ## Start a whole cluster on this machine (ARGS="--listen 127.0.0.1:9090" to pass options)
	@exec $(BIN)/mandor dev $(ARGS)

.PHONY: api-up
api-up: setup ## Serve the placement of virtual machines at 127.0.0.1:8080, over the machines of `make node-up`
	@MANDOR_INVENTORY=$${MANDOR_INVENTORY:-http://127.0.0.1:8090/nodes} MANDOR_INVENTORY_EVERY=5s \
	  MANDOR_PIPELINES=$${MANDOR_PIPELINES:-examples/baremetal/pipelines.yaml} \
	  exec $(BIN)/python -m mandor.roots.server --dev --data .mandor-vm --listen 127.0.0.1:8080 $(ARGS)

.PHONY: node-up
node-up: setup ## Serve a made-up list of machines at 127.0.0.1:8090, as a node API would
	@exec $(BIN)/python examples/baremetal/node_api.py $(ARGS)

.PHONY: components
components: setup ## Get the real components that the tests use (WITH=NAME asks for one by name)
	@$(BIN)/python scripts/components.py

.PHONY: test
test: setup ## Set up everything, real components included, and run every check and test
	@WORKERS=$(WORKERS) scripts/test.sh $(ARGS)

.PHONY: check
check: setup ## Format, lint, types and import contracts (no tests)
	@$(MAKE) --no-print-directory -j4 -Otarget check-format check-lint check-types check-imports

.PHONY: check-format check-lint check-types check-imports
check-format:
	@log=$$($(BIN)/ruff format --check . 2>&1) || { echo "$$log"; echo "format   run 'make format'"; exit 1; }
	@echo "format   ok"
check-lint:
	@$(BIN)/ruff check --quiet .
	@echo "lint     ok"
check-types:
	@$(BIN)/mypy --strict --no-error-summary
	@echo "types    ok"
check-imports:
	@log=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$log"; exit 1; }
	@echo "imports  ok"

.PHONY: format
format: setup ## Rewrite the sources in the project's format, with safe lint fixes
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

.PHONY: reference
reference: setup ## Write docs/reference and requirements.txt anew from the code
	@$(BIN)/python -m scripts.reference
	@$(BIN)/python scripts/imported_keys.py
	@$(BIN)/python scripts/api_reference.py
	@$(BIN)/python scripts/pip_requirements.py

.PHONY: docs
docs: setup ## Build the documentation as a site in build/docs/html; a link that leads nowhere is an error
	@$(BIN)/python scripts/site.py $(ARGS)

.PHONY: scale
scale: setup ## Measure a server with up to 5,000 agents on SQLite and etcd, about half an hour; keeps bench/results/scale.json
	@$(BIN)/python bench/scale.py --json bench/results/scale.json --profile bench/results/scale_profile $(ARGS)

.PHONY: bench
bench: setup ## Measure: runs bench/run.py (ARGS="--help" for its options)
	@$(BIN)/python bench/run.py $(ARGS)

.PHONY: chaos
chaos: setup ## Put a whole cluster of real processes through every fault: bench/results/faults.json
	@$(BIN)/python bench/run.py faults

.PHONY: attack
attack: setup ## Attack a real server for ten minutes (ARGS="--minutes 60 --seed 7"): bench/results/attack.json
	@$(BIN)/python bench/attack.py --json bench/results/attack.json $(ARGS)

.PHONY: soak
soak: setup ## Hundreds of orders of arrival, then kill, restart and compare: bench/run.py soak (ARGS="--minutes 60", "--seeds 5000", "--orders 1000")
	@$(BIN)/python bench/run.py soak $(ARGS)

.PHONY: mutants
mutants: setup ## List small changes of the deciding code that no test notices (ARGS="store --count 100 --seed 7")
	@$(BIN)/python scripts/mutants.py $(ARGS)

.PHONY: requirements
requirements: setup ## List every requirement with the tests that show it, and those without
	@$(BIN)/python scripts/requirements.py $(ARGS)

.PHONY: lock
lock: setup ## Resolve pyproject.toml anew into requirements.lock
	@$(BIN)/uv pip compile -q pyproject.toml --all-extras --group dev --python-version 3.11 --universal \
	  --no-emit-index-url --generate-hashes --no-header -o requirements.lock

.PHONY: clean
clean: ## Remove .venv, .components and everything the tools left (never .mandor, which holds your data)
	rm -rf .venv .components .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
	find src tests scripts bench -name __pycache__ -prune -exec rm -rf {} +
