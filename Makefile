# Start with `make demo` and `make test`. Both install missing servers.

CARGO ?= cargo
SUITE := --features cli,metrics,testbed,tls,serde,simulation
# Only this package is optimised; dependencies are built as for the tests. Without the tool, which takes long to optimise.
OPTIMISED := --features metrics,testbed,tls,serde,simulation --config profile.test.package.quorlock.opt-level=3
# Most tests wait most of the time.
THREADS = $(shell expr 2 '*' $$(nproc 2>/dev/null || echo 2))

.PHONY: help suite demo demo-fencing test matrix model simulate fairness ordering chaos resources mutants lint docs bench bench-quick compose-test setup setup-tests setup-bench

help:
	@echo "make demo          a command under a lock on five real masters; then with two, and with three of them dead"
	@echo "make demo-fencing  a paused holder overwrites newer work; with fencing tokens, the store refuses the write"
	@echo "make test          all tests, on real servers"
	@echo "make matrix        the tests that depend on the server, on Redis 6.2 to 8.2 and Valkey (40 minutes; SERVERS='oldest newest': some)"
	@echo "make model         the rules of fencing tokens and node memories, in larger worlds than the tests check (10 minutes)"
	@echo "make simulate      many simulated runs of clients and servers, for SECONDS=180 (and the build)"
	@echo "make fairness      a table of how crowds of simulated processes share a lock (half a minute, and the build)"
	@echo "make ordering      100,000 grants, and as many again, while nodes fail: tokens rise (10 minutes with the build)"
	@echo "make chaos         every fault of servers, data, addresses, networks, clocks and clients at once (MINUTES=10, and the build)"
	@echo "make resources     the memory of 100,000 leases and 10,000 waiters, and that nothing of it stays (10 minutes with the build)"
	@echo "make mutants       whether the tests notice each deliberate fault in the code (an hour)"
	@echo "make lint          rustfmt and clippy; licences and advisories if cargo-deny is installed"
	@echo "make docs          the documentation, without warnings"
	@echo "make bench         speed beside a raw floor and peers, written into docs/benchmarks.md and docs/benchmarks/ (15 minutes)"
	@echo "make bench-quick   whether the benchmarks run; their numbers mean nothing"
	@echo "make compose-test  the behaviour suite against the compose testbed (needs root or a Docker engine)"

# The options with which the tests are built.
suite:
	@echo "$(SUITE)"

setup:
	@scripts/setup

setup-tests:
	@scripts/setup postgresql prometheus

setup-bench:
	@scripts/setup postgresql etcd-server

demo: setup
	@scripts/demo

# Set FEATURES to those of a build that is there, to use it again.
FEATURES ?= --features cli

demo-fencing: setup
	@echo "building the demonstration, with what the tests need (several minutes the first time)"
	$(CARGO) build --example stale_writer $(FEATURES)
	@echo
	@$(CARGO) run --quiet --example stale_writer $(FEATURES) -- --no-fencing
	@echo
	@$(CARGO) run --quiet --example stale_writer $(FEATURES)

test: setup-tests
	$(CARGO) test $(SUITE) -- --test-threads $(THREADS)

# Fetches servers into target/servers.
matrix: setup-tests
	scripts/matrix $(SERVERS)

MODELS ?= model identity

model:
	for model in $(MODELS); do \
		$(CARGO) test $(OPTIMISED) --test $$model -- --nocapture --test-threads 1 --include-ignored || exit 1; \
	done

SECONDS ?= 180

simulate:
	QUORLOCK_SIM_SECONDS=$(SECONDS) $(CARGO) test $(OPTIMISED) --test randomised

fairness:
	$(CARGO) test $(OPTIMISED) --test scripted -- --ignored --nocapture figures_of_many_worlds

# Each mutant takes half a minute to build, and as long to be noticed.
mutants:
	scripts/mutants

# The two trials of chaos that empty nodes without the restart guard.
ordering: setup-tests
	QUORLOCK_GRANTS=100000 $(CARGO) test --release --features testbed --test chaos -- emptied

# The other two trials, which share the time.
MINUTES ?= 10

chaos: setup-tests
	QUORLOCK_CHAOS_SECONDS=$$(( $(MINUTES) * 30 )) $(CARGO) test $(SUITE) --test chaos -- survive

resources: setup
	QUORLOCK_LEASES=100000 $(CARGO) test --release --features testbed --test resources

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	@if $(CARGO) semver-checks --version >/dev/null 2>&1; then $(CARGO) semver-checks --default-features; else echo "cargo-semver-checks is not installed: changes of the public face not checked"; fi
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; else echo "cargo-deny is not installed: licences and advisories not checked"; fi

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features

bench: setup-bench
	scripts/bench

bench-quick: setup-bench
	$(CARGO) bench --features testbed --bench uncontended -- --quick
	$(CARGO) bench --features testbed --bench contended -- --quick

compose-test: setup
	scripts/docker-engine scripts/compose-test
