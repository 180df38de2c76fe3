# Holdfast: everything a contributor or a newcomer types. `make help` explains the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
# One dev profile for lint, test and sim, so that nothing is built twice; release for what is run and measured.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# As root, the node, its tests and its demo run as this user, which `make setup` creates.
export HOLDFAST_TEST_USER ?= holdfast

# The seeds of `make sim`.
SIM_WHICH = --seeds $(or $(SEEDS),2000) --from $(or $(FROM),0) --profile $(or $(PROFILE),default)
.PHONY: help setup setup-lint setup-bench build demo test lint fmt sim sim-mutants replay chaos bench clean

help: ## Explain the targets
	@echo 'Holdfast: a rootless node whose workloads outlive every process of it.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'Variables: SCENARIOS="pin_kill replug" (chaos), SEEDS=2000 FROM=0 PROFILE=default (sim, replay),'
	@echo '           RUNS=30 (bench),'
	@echo '           HOLDFAST_TEST_USER=holdfast (whom the node runs as when make runs as root).'

setup: ## Install what is missing (Debian packages, node user, /dev/net/tun); safe to repeat
	@scripts/setup.sh

setup-bench:
	@scripts/setup.sh --bench

setup-lint:
	@scripts/setup.sh --lint

build: ## Build the release binaries
	$(CARGO) build --release --locked -p holdfast -p holdfast-chaos

demo: setup build ## Run a node, kill everything it is made of, and watch the workloads live on
	$(TARGET_DIR)/release/holdfast-chaos demo

# The binaries come first: end-to-end tests run the real `holdfast`. The simulator's seeds run once more on madsim's
# runtime, in a build of its own. scripts/test-total.sh prints the last line, the sum over all test binaries, and fails
# if no test ran.
test: setup lint ## Lint, then every test, end-to-end tests on the real kernel included
	$(CARGO) build --locked --workspace --bins
	{ failed=0; \
	HOLDFAST_BIN=$(abspath $(TARGET_DIR))/debug/holdfast HOLDFAST_CHAOS_BIN=$(abspath $(TARGET_DIR))/debug/holdfast-chaos \
		$(CARGO) test --locked --workspace --no-fail-fast || failed=1; \
	$(CARGO) test-madsim --test seeds --test determinism --no-fail-fast || failed=1; \
	exit $$failed; } 2>&1 | scripts/test-total.sh

lint: setup-lint ## Formatting, clippy with warnings denied, licences, bans and sources
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p holdfast-sim --features mutants --all-targets -- -D warnings
	$(CARGO) clippy-madsim
	$(CARGO) deny --locked --log-level error check licenses bans sources

fmt: ## Format the sources
	$(CARGO) fmt --all

sim: ## Run seeds on the simulated node, madsim first (SEEDS=2000 FROM=0 PROFILE=default), and a kill at every step
	$(CARGO) test --locked -p holdfast-sim --test kill_at_every_step
	$(CARGO) run --locked -p holdfast-sim --bin holdfast-sim -- run $(SIM_WHICH) --executor stepping
	$(CARGO) sim-madsim run $(SIM_WHICH) --executor madsim

replay: setup ## Histories of the simulator on a real node, compared after every step (SEEDS=25 FROM=0)
	HOLDFAST_REPLAY_SEEDS=$(or $(SEEDS),25) HOLDFAST_REPLAY_FROM=$(or $(FROM),0) \
		$(CARGO) test --locked -p holdfast-tests --test replay

# One build plants each bug in turn. The feature is on in no other target, and a real node's code refuses it.
sim-mutants: ## Plant known bugs in core and show that the simulator finds each (SEEDS=300); minutes
	$(CARGO) run --locked -p holdfast-sim --features mutants --bin holdfast-sim-mutants -- --seeds $(or $(SEEDS),300)

chaos: setup build ## Real kills on a real node; SCENARIOS="…" picks some
	$(TARGET_DIR)/release/holdfast-chaos run $(SCENARIOS)

bench: setup-bench build ## Criterion benches, then p50/p99 of a real node and ratios against podman (RUNS=30)
	$(CARGO) bench --locked -p holdfast-benches
	$(CARGO) bench-madsim
	$(CARGO) run --release --locked -p holdfast-sim --bin holdfast-sim -- memory --seeds $(or $(MEMORY_SEEDS),100000) --profile kills
	$(CARGO) build --release --locked -p holdfast-benches --bins
	$(TARGET_DIR)/release/holdfast-bench-node --runs $(or $(RUNS),30)
	$(TARGET_DIR)/release/holdfast-bench-world --runs $(or $(RUNS),30)

clean: ## Remove build output
	$(CARGO) clean
