# Vespiary. `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
PORT ?= 61616
IMAGE_TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
WORKERS ?= 2
# With more, tests that have a namespace of their own run beside one another (docs/decisions/0034).
E2E_WORKERS ?= 1
FUZZ_INPUTS ?= 1000000
FUZZ_SECONDS ?= 60
# Most of a test's time is waiting for a disk or a process; work that is left is shared out again.
# A machine that fails everything (no space, no AIO) says so after these many failures, not after hours.
FAILURES_MAX ?= 25
PYTEST := $(BIN)/python -m pytest -q --durations=25 --durations-min=2 --maxfail=$(FAILURES_MAX)
SPREAD := -n $(WORKERS) --dist worksteal
# The other packages touch neither a ring nor the core.
ON_EVERY_ENGINE := tests/unit/vespiary_broker tests/unit/vespiary_native tests/integration
# The ring alone differs there. The other unit tests have theirs in memory (tests/unit/vespiary_broker/conftest.py).
ON_NIO := $(addprefix tests/unit/vespiary_broker/,app cli store/volumes) tests/unit/vespiary_native tests/integration
# What these look at stands before the ring and the core: logins, TLS, WebSockets, codecs, and rounds of stock clients. They run once, on AIO.
ONCE := $(foreach name,address_limits advice_go advice_javascript advice_pages advice_python amqp_go amqp_page amqp_rhea certificate_logins client_pages mqtt_bad_input \
	mqtt_clients mqtt_codec mqtt_howto passwords_in_logs permissions proxy_protocol tls_clients tls_page websocket_clients websocket_page \
	websocket_protocols,--ignore=tests/integration/test_$(name).py)
C_FLAGS := -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wvla -Werror
C_SOURCES := $(wildcard native/src/*.c)
C_HEADERS := $(wildcard native/src/*.h)
C_TESTS := $(patsubst native/tests/%.c,native/tests/bin/%,$(wildcard native/tests/test_*.c))
# The fuzzers of the scanners (native/fuzz): guided by the coverage of what scans, and of what it keeps and is taught.
FUZZ_SCANNERS := stomp mqtt amqp
FUZZ_GUIDES := $(notdir $(basename $(wildcard native/src/*_scan.c))) stomp_switch taught amqp_links amqp_send
FUZZ_CORE := $(patsubst native/src/%.c,native/fuzz/bin/core/%.o,$(C_SOURCES))
FUZZ_OWN := $(patsubst native/fuzz/%.c,native/fuzz/bin/%.o,$(wildcard native/fuzz/*.c))
FUZZ_HEADERS := $(C_HEADERS) $(wildcard native/fuzz/*.h) native/tests/check.h
FUZZ_FLAGS := $(C_FLAGS) -g -fsanitize=address,undefined -fno-sanitize-recover=all -Inative/src
# Each input has cores of its own: less memory to begin with, and used again (native/fuzz/recycled_memory.c).
FUZZ_CORE_FLAGS := -DSCRATCH_BYTES=256 $(foreach call,mmap munmap madvise,-D$(call)=recycled_$(call))
FUZZ_CC ?= $(shell .ci/clang --find)

.PHONY: help run test test-jms late mutants campaign fuzz corpus scanners check bench bench-journal bench-paging bench-engine bench-protocols bench-attacks bench-pipeline bench-operator e2e image manifests tools java maven clang spark gen gen-check native native-test lint types layers c-warnings clean

help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1\t\2/' | expand -t 16

# --- the environment --------------------------------------------------------------------------
$(VENV)/.tools: Makefile
	@command -v $(PYTHON) >/dev/null || { echo "Vespiary needs Python 3.11 or newer: '$(PYTHON)' was not found. Install it, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Vespiary needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "Vespiary needs a C compiler: '$${CC:-cc}' was not found. On Debian: apt-get install gcc libc6-dev" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Vespiary needs Python's venv module. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || { echo "Vespiary needs Python's header files (Python.h). On Debian: apt-get install python3-dev" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@touch $@

$(VENV)/.run: $(VENV)/.tools pyproject.toml setup.py native/build_native.py $(wildcard native/src/*.[ch])
	@echo "installing Vespiary and building its native part"
	@$(BIN)/pip install -q --disable-pip-version-check -e .
	@$(BIN)/python -m compileall -q broker crds native/vespiary_native operator pipeline
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the development tools"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

native: $(VENV)/.run ## build the C part in place

# --- what a user runs ---------------------------------------------------------------------------
run: $(VENV)/.run ## start a broker on loopback with its data in ./data
	@exec $(BIN)/vespiary run --data $(DATA) --port $(PORT)

test: $(VENV)/.dev ## all that needs no cluster: C, AIO, Spark, JMS, NIO, and the pure-Python twins; all run, whichever fails
	@trap 'exit 130' INT; failed=; \
	$(MAKE) native-test || failed+=" native-test"; \
	$(PYTEST) $(SPREAD) -m "not e2e and not spark and not jms" || failed+=" AIO"; \
	$(PYTEST) -m spark tests/spark || failed+=" Spark"; \
	$(PYTEST) -m jms tests/integration/test_jms.py tests/integration/test_jms_conversion.py || failed+=" JMS"; \
	VESPIARY_RING=threads $(PYTEST) $(SPREAD) -m "not e2e and not slow and not jms" $(ONCE) $(ON_NIO) || failed+=" NIO"; \
	VESPIARY_NATIVE=0 $(PYTEST) $(SPREAD) -m "not e2e and not slow and not jms" $(ONCE) $(ON_EVERY_ENGINE) || failed+=" twins"; \
	if [ -n "$$failed" ]; then echo "make test: failed:$$failed" >&2; exit 1; fi

spark: $(VENV)/.dev ## the tests with real Spark, in one session (needs Java: `make java`)
	$(PYTEST) -m spark tests/spark

test-jms: $(VENV)/.dev ## JMS through stock Qpid JMS, both APIs (needs a JDK and Maven: `make maven`)
	$(PYTEST) -m jms tests/integration/test_jms.py tests/integration/test_jms_conversion.py

late: $(VENV)/.dev ## unit and integration tests on AIO, NIO and the twins, with threads and sockets that are late at random (half an hour)
	@trap 'exit 130' INT; failed=; export VESPIARY_LATE=$${VESPIARY_LATE:-0.4} PYTHONPATH=tests/late; \
	for engine in AIO VESPIARY_RING=threads VESPIARY_NATIVE=0; do \
		env $${engine#AIO} $(PYTEST) $(SPREAD) -m "not e2e and not slow and not jms" $(ON_EVERY_ENGINE) || failed+=" $$engine"; \
	done; \
	if [ -n "$$failed" ]; then echo "make late: failed:$$failed" >&2; exit 1; fi

fuzz: $(VENV)/.dev ## bent bytes for the decoder of each protocol and, with clang, for the scanners of C; FUZZ_INPUTS each (default: a million)
	@! cc=$$(.ci/clang --find) || $(MAKE) -s scanners FUZZ_CC=$$cc
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs random --inputs $(FUZZ_INPUTS) --processes $(WORKERS)

corpus: $(VENV)/.dev ## look for new inputs by coverage, FUZZ_SECONDS for each target, and commit to tests/fuzz/corpus what reaches more
	@! cc=$$(.ci/clang --find) || $(MAKE) -s scanners FUZZ_CC=$$cc
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs grow --seconds $(FUZZ_SECONDS) --processes $(WORKERS)
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs keep

mutants: $(VENV)/.dev ## seeded faults of the durability path: each must turn its test red
	$(PYTEST) $(SPREAD) tests/mutants

campaign: $(VENV)/.dev ## the long proofs: power cuts, kills, faults, fuzzing by coverage (up to two hours; bounds: docs/internals/proofs.md)
	@! cc=$$(.ci/clang --find) || $(MAKE) -s scanners FUZZ_CC=$$cc
	PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.campaign all

check: $(VENV)/.dev lint types layers gen-check c-warnings ## format, lint, types, layers, drift, C warnings

bench: $(VENV)/.dev ## measure; prints the machine, the durability class and the settings
	$(BIN)/python -m benchmarks

bench-journal: $(VENV)/.dev ## measure the journal alone, beside the raw disk, and its recovery
	$(BIN)/python -m benchmarks.journal

bench-paging: $(VENV)/.dev ## measure a backlog larger than the memory, and a lazy queue beside a fast one
	$(BIN)/python -m benchmarks.paging

bench-engine: $(VENV)/.dev ## measure many queues beside few, and many subscribers of one address
	$(BIN)/python -m benchmarks.engine

bench-protocols: $(VENV)/.dev ## measure STOMP, MQTT and AMQP, from each to each, with TLS, and ten thousand idle connections
	$(BIN)/python -m benchmarks.protocols

bench-attacks: $(VENV)/.dev ## measure what hostile clients cost a side flow: latency and memory
	$(BIN)/python -m benchmarks.protocols.attacks

bench-pipeline: $(VENV)/.dev ## measure how fast journals become columns, on one core and through Spark
	$(BIN)/python -m benchmarks.pipeline

bench-operator: $(VENV)/.dev ## measure the operator on the cluster of KUBECONFIG: repairs, and 500 Brokers without machines
	$(BIN)/python -m benchmarks.operator

e2e: $(VENV)/.dev ## the main job on a real Kubernetes (KUBECONFIG, or the cluster script beside the repository); E2E_WORKERS=3: three at a time, then what must be alone
	@if [ "$(E2E_WORKERS)" = 1 ]; then exec $(PYTEST) tests/e2e -m e2e; fi; \
	trap 'exit 130' INT; failed=; VESPIARY_E2E_RECORD=$$(mktemp); export VESPIARY_E2E_RECORD; trap 'rm -f "$$VESPIARY_E2E_RECORD"' EXIT; \
	$(PYTEST) -n $(E2E_WORKERS) --dist loadfile --no-loadscope-reorder tests/e2e -m "e2e and not alone" || failed+=" beside-others"; \
	$(PYTEST) tests/e2e -m "e2e and alone" || failed+=" alone"; \
	if [ -n "$$failed" ]; then echo "make e2e: failed:$$failed" >&2; exit 1; fi

image: ## build vespiary/broker, vespiary/operator and vespiary/pipeline with podman or docker
	@tool=$$(command -v podman || command -v docker) || { echo "make image needs podman or docker: neither was found" >&2; exit 1; }; \
	for target in broker operator pipeline; do "$$tool" build --target $$target -t vespiary/$$target:$(IMAGE_TAG) . || exit 1; done

manifests: $(VENV)/.dev ## write dist/install.yaml, the chart as one file for kubectl (needs helm)
	$(BIN)/python -m vespiary_spec.gen.manifests dist/install.yaml

tools: $(VENV)/.dev ## build promtool, kube-score and kubeconform for the chart's tests (Go; minutes, once)
	PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.go_tools

java: ## make sure that Spark finds Java 17 or newer; as root on Debian, install it
	@.ci/java

maven: ## make sure that the tests of JMS find a JDK of version 17 or newer and Maven; as root on Debian, install them
	@.ci/maven

clang: ## make sure that the scanners of C can be fuzzed (clang with libFuzzer); as root on Debian, install it
	@.ci/clang >/dev/null

gen: $(VENV)/.dev ## write crds/*.yaml, the chart's schema and RBAC, and docs/reference from the code
	$(BIN)/python -m vespiary_spec.gen

# --- what `check` and `test` are made of ----------------------------------------------------------
lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports

gen-check: $(VENV)/.dev
	$(BIN)/python -m vespiary_spec.gen --check

c-warnings:
	@for source in $(C_SOURCES) native/fuzz/scanner_*.c native/fuzz/libfuzzer.c benchmarks/stompload.c benchmarks/protocolload.c $(wildcard benchmarks/load/*.c) benchmarks/journal/rawwrite.c; do $${CC:-cc} $(C_FLAGS) -Inative/src -c $$source -o /dev/null || exit 1; done

native/tests/bin/%: native/tests/%.c $(C_SOURCES) $(C_HEADERS)
	@mkdir -p native/tests/bin
	$${CC:-cc} $(C_FLAGS) -g -fsanitize=address,undefined -fno-sanitize-recover=all -Inative/src $< $(MORE_SOURCES) $(C_SOURCES) -o $@

# It replays what the fuzzers keep, without clang.
native/tests/bin/test_corpus: MORE_SOURCES := native/fuzz/scanner_target.c native/fuzz/scanner_protocols.c
native/tests/bin/test_corpus: native/fuzz/scanner_target.c native/fuzz/scanner_protocols.c native/fuzz/scanner_target.h

scanners: $(FUZZ_SCANNERS:%=native/fuzz/bin/%_scanner)

native/fuzz/bin/%_scanner: native/fuzz/bin/scanners
	ln -f $< $@

native/fuzz/bin/scanners: $(FUZZ_OWN) $(FUZZ_CORE)
	$(FUZZ_CC) -fsanitize=fuzzer,address,undefined $^ -o $@

native/fuzz/bin/core/%.o: native/src/%.c $(FUZZ_HEADERS) Makefile
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $(FUZZ_CORE_FLAGS) $(if $(filter $*,$(FUZZ_GUIDES)),-fsanitize=fuzzer-no-link) -c $< -o $@

native/fuzz/bin/%.o: native/fuzz/%.c $(FUZZ_HEADERS) Makefile
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) -c $< -o $@

native-test: $(C_TESTS)
	@for test in $(C_TESTS); do echo "$$test"; $$test || exit 1; done

clean: ## remove what was built (not ./data)
	rm -rf $(VENV) build dist *.egg-info native/tests/bin native/fuzz/bin benchmarks/bin native/vespiary_native/_native*.so
