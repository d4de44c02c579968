# The two commands that matter: `make demo` and `make test`. Both set up what they need.

CARGO ?= cargo
SUITE := --features cli,testbed,tls,serde

.PHONY: help demo demo-fencing test matrix model simulate fairness ordering chaos resources mutants lint docs bench bench-quick compose-test setup setup-tests setup-bench

help:
	@echo "make demo          a command under a lock on five real masters; the same with two dead"
	@echo "make demo-fencing  a paused holder overwrites the next one's work; with fencing tokens, the store refuses that"
	@echo "make test          all tests, on real servers"
	@echo "make matrix        the tests that depend on the server, on Redis 6.2 to 8.2 and Valkey (SERVERS='oldest newest': some; 40 minutes)"
	@echo "make model         the rules of fencing tokens and of memories in larger worlds than the tests check (some ten minutes)"
	@echo "make simulate      many simulated runs of clients and servers, for SECONDS=180 (and some minutes to build)"
	@echo "make fairness      how crowds of processes share a lock, in simulated worlds: a table (half a minute, and the build)"
	@echo "make ordering      100,000 grants, and as many again, while nodes fail (some ten minutes with the build)"
	@echo "make chaos         everything that goes wrong with servers, data, addresses, networks, clocks and clients (MINUTES=10, and the build)"
	@echo "make resources     what 100,000 leases and 10,000 waiters cost, and that nothing of it is left (ten minutes with the build)"
	@echo "make mutants       deliberate faults in the code, each of which the tests must notice (an hour)"
	@echo "make lint          rustfmt, clippy, licences and advisories where cargo-deny is installed"
	@echo "make docs          the documentation, warnings denied"
	@echo "make bench         speed beside a raw floor and peers, written into docs/benchmarks.md and docs/benchmarks/ (a quarter of an hour)"
	@echo "make bench-quick   whether the benchmarks run; their numbers mean nothing"
	@echo "make compose-test  the behaviour suite against the compose testbed (needs root or a Docker engine)"

setup:
	@scripts/setup

setup-tests:
	@scripts/setup postgresql

demo: setup
	@scripts/demo

# With the features that CI builds the other examples with, so as not to build all twice.
demo-fencing: setup
	@echo "building the demonstration, with what the tests need (several minutes the first time)"
	$(CARGO) build --example stale_writer --features cli
	@echo
	@$(CARGO) run --quiet --example stale_writer --features cli -- --no-fencing
	@echo
	@$(CARGO) run --quiet --example stale_writer --features cli

test: setup-tests
	$(CARGO) test $(SUITE)

# Servers are fetched, and kept in target/servers.
matrix: setup-tests
	scripts/matrix $(SERVERS)

# Optimised, but for this package only: the rest is as the tests have it.
MODELS ?= model identity

model:
	for model in $(MODELS); do \
		$(CARGO) test --test $$model --config profile.test.package.quorlock.opt-level=3 -- --nocapture --test-threads 1 --include-ignored || exit 1; \
	done

# Optimised as above.
SECONDS ?= 180

simulate:
	QUORLOCK_SIM_SECONDS=$(SECONDS) $(CARGO) test --features testbed --test randomised --config profile.test.package.quorlock.opt-level=3

fairness:
	$(CARGO) test --features testbed --test scripted --config profile.test.package.quorlock.opt-level=3 -- \
		--ignored --nocapture figures_of_many_worlds

# Builds each of them: half a minute each, and as long to be noticed.
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
