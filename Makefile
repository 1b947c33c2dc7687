# Everything a developer runs. Each target first makes sure that what it needs is installed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak bench lint

help: ## Show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## Install the missing Debian packages that building and testing need
	@scripts/setup.sh

demo: setup ## Connect two namespaces, break the link by hand, watch it come back
	@cargo build --locked --bins
	@scripts/demo.sh target/debug

test: setup ## Run every test: unit tests, and the real binary on the real kernel and etcd
	cargo test --locked

soak: setup ## Start, stop and crash microservices thousands of times; kill and hurt an agent that moves NICs hundreds of times (two and a half hours or less)
	VNF_TEST_SOAK=1 cargo test --locked --test microservices_soak --test microservices_faults -- --nocapture --test-threads 2
	VNF_TEST_SOAK=1 cargo test --locked --test external_node_kill again -- --nocapture
	VNF_TEST_SOAK=1 cargo test --locked --test external_node_chaos -- --nocapture

bench: setup ## Measure the agent beside the kernel alone (BENCH=--quick, or BENCH=--full with 10000 interfaces)
	cargo bench --locked --bench scale -- $(BENCH)

lint: setup ## Formatting, clippy and documentation, without a warning
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
