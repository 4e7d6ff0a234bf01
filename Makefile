# Vespiary. `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DATA ?= data
PORT ?= 61616
PORT_OFFSET ?= 0
IMAGE_TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PROCESSES ?= 2
FUZZ_INPUTS ?= 1000000
FUZZ_SECONDS ?= 60
# `make verify PART=late` runs one part of a tier; tests/vespiary_testkit/tiers.py lists them.
TIERS := PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m vespiary_testkit.tiers
PARTS := $(addprefix --part ,$(PART))
C_FLAGS := -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wvla -Werror
C_SOURCES := $(wildcard native/src/*.c)
C_HEADERS := $(wildcard native/src/*.h)
C_TESTS := $(patsubst native/tests/%.c,native/tests/bin/%,$(wildcard native/tests/test_*.c))
C_TEST_CORE := $(patsubst native/src/%.c,native/tests/bin/core/%.o,$(C_SOURCES))
C_TEST_FLAGS := $(C_FLAGS) -g -fsanitize=address,undefined -fno-sanitize-recover=all -Inative/src
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

.PHONY: help run test ci verify fuzz corpus scanners check bench bench-journal bench-paging bench-engine bench-protocols bench-attacks bench-pipeline bench-operator e2e image manifests tools java maven mosquitto clang gen gen-check native native-test lint types layers c-warnings clean

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

# What an installation is made of. Each stamp stands for one installation with more extras than the one before.
INSTALLED := $(VENV)/.tools pyproject.toml setup.py native/build_native.py $(wildcard native/src/*.[ch])

# Brokers start faster when their modules are compiled in advance; some environments forbid Python to write bytecode later.
COMPILE := $(BIN)/python -m compileall -q broker crds native/vespiary_native operator pipeline

$(VENV)/.run: $(INSTALLED)
	@echo "installing Vespiary and building its native part"
	@$(BIN)/pip install -q --disable-pip-version-check -e .
	@$(COMPILE)
	@touch $@

# `make test` needs neither Spark nor linters.
$(VENV)/.test: $(INSTALLED)
	@echo "installing Vespiary and what its tests need, and building its native part"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@$(COMPILE)
	@touch $(VENV)/.run $@

$(VENV)/.dev: $(INSTALLED)
	@echo "installing Vespiary, Spark and the development tools, and building the native part"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@$(COMPILE)
	@touch $(VENV)/.run $(VENV)/.test $@

native: $(VENV)/.run ## build the C part in place

# --- what a user runs ---------------------------------------------------------------------------
run: $(VENV)/.run ## start a broker on loopback with its data in ./data; PORT_OFFSET=N and DATA=DIR for a second one
	@exec $(BIN)/vespiary run --data $(DATA) --port $(PORT) --port-offset $(PORT_OFFSET)

# --- tests, in three tiers: docs/internals/proofs.md ------------------------------------------------
test: $(VENV)/.test ## quick tests, before each commit (at most 8 minutes); needs neither Java nor a cluster
	@$(TIERS) test $(PARTS)

ci: ## what CI runs, before landing (at most 35 minutes): check, test, tests marked ci, mutants, Spark, JMS, fuzzing, e2e smoke
	@.ci/run ci $(PARTS)

verify: ## everything, before an issue is closed (hours, resumable); PART=NAME runs one part
	@.ci/run verify $(PARTS)

e2e: $(VENV)/.dev ## the whole e2e suite on a Kubernetes cluster (KUBECONFIG)
	@$(TIERS) verify --part e2e --part e2e-alone

fuzz: $(VENV)/.dev ## malformed input for each protocol decoder and, with clang, each C scanner; FUZZ_INPUTS each (default: a million)
	@! cc=$$(.ci/clang --find) || $(MAKE) -s scanners FUZZ_CC=$$cc
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs random --inputs $(FUZZ_INPUTS) --processes $(PROCESSES)

corpus: $(VENV)/.dev ## search for new fuzz inputs by coverage, FUZZ_SECONDS per target, and add those that reach more to tests/fuzz/corpus
	@! cc=$$(.ci/clang --find) || $(MAKE) -s scanners FUZZ_CC=$$cc
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs grow --seconds $(FUZZ_SECONDS) --processes $(PROCESSES)
	@PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.fuzz_runs keep

check: $(VENV)/.dev lint types layers gen-check c-warnings ## format, lint, types, layers, generated files, C warnings

bench: $(VENV)/.dev ## measure; prints the machine, the durability class and the settings
	$(BIN)/python -m benchmarks

bench-journal: $(VENV)/.dev ## measure the journal alone, beside the raw disk, and its recovery
	$(BIN)/python -m benchmarks.journal

bench-paging: $(VENV)/.dev ## measure a backlog larger than the memory, and a slow queue next to a fast one
	$(BIN)/python -m benchmarks.paging

bench-engine: $(VENV)/.dev ## measure 10,000 queues against 10, and many subscribers of one address
	$(BIN)/python -m benchmarks.engine

bench-protocols: $(VENV)/.dev ## measure STOMP, MQTT and AMQP in every combination, with TLS, and ten thousand idle connections
	$(BIN)/python -m benchmarks.protocols

bench-attacks: $(VENV)/.dev ## measure the effect of hostile clients on other traffic: latency and memory
	$(BIN)/python -m benchmarks.protocols.attacks

bench-pipeline: $(VENV)/.dev ## measure how fast journals become columns, on one core and through Spark
	$(BIN)/python -m benchmarks.pipeline

bench-operator: $(VENV)/.dev ## measure the operator on the cluster of KUBECONFIG: repairs, and 500 Brokers whose pods never run
	$(BIN)/python -m benchmarks.operator

image: ## build vespiary/broker, vespiary/operator and vespiary/pipeline with podman or docker
	@tool=$$(command -v podman || command -v docker) || { echo "make image needs podman or docker: neither was found" >&2; exit 1; }; \
	for target in broker operator pipeline; do "$$tool" build --target $$target -t vespiary/$$target:$(IMAGE_TAG) . || exit 1; done

manifests: $(VENV)/.dev ## write dist/install.yaml, the chart as one file for kubectl (needs helm)
	$(BIN)/python -m vespiary_spec.gen.manifests dist/install.yaml

tools: $(VENV)/.dev ## build promtool, kube-score and kubeconform for the chart's tests (Go; minutes, once)
	PYTHONPATH=tests $(BIN)/python -m vespiary_testkit.go_tools

java: ## make sure that Spark finds Java 17 or newer; as root on Debian, install it
	@.ci/java

maven: ## make sure that the JMS tests find JDK 17 or newer and Maven; as root on Debian, install them
	@.ci/maven

mosquitto: ## make sure that the tests of MQTT find mosquitto and Paho C; as root on Debian, install them
	@.ci/mosquitto

clang: ## make sure that the C scanners can be fuzzed (clang with libFuzzer); as root on Debian, install it
	@.ci/clang >/dev/null

gen: $(VENV)/.dev ## write crds/*.yaml, the chart's schema and RBAC, and docs/reference from the code
	$(BIN)/python -m vespiary_spec.gen

# --- parts of `check` and `test` ----------------------------------------------------------
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

# Each source is compiled once for all test programs.
native/tests/bin/core/%.o: native/src/%.c $(C_HEADERS)
	@mkdir -p $(@D)
	@$${CC:-cc} $(C_TEST_FLAGS) -c $< -o $@

native/tests/bin/fuzz/%.o: native/fuzz/%.c native/fuzz/scanner_target.h $(C_HEADERS)
	@mkdir -p $(@D)
	@$${CC:-cc} $(C_TEST_FLAGS) -c $< -o $@

native/tests/bin/%: native/tests/%.c native/tests/check.h $(C_TEST_CORE)
	@$${CC:-cc} $(C_TEST_FLAGS) $< $(filter %.o,$^) -o $@

# It replays what the fuzzers keep, without clang.
native/tests/bin/test_corpus: native/tests/bin/fuzz/scanner_target.o native/tests/bin/fuzz/scanner_protocols.o

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
