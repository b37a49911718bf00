# SPDX-License-Identifier: BSD-3-Clause
# `make help` lists the targets: each that has ## behind it.

MPI = mpich
ARGS =
CC = gcc
export CC

ifeq ($(MPI),mpich)
VENV = .venv
else ifeq ($(MPI),openmpi)
VENV = .venv-openmpi
else
$(error MPI=$(MPI): must be mpich or openmpi)
endif

PYTHON = $(VENV)/bin/python
LAUNCH = $(PYTHON) tests/launch.py
LIMIT = timeout --foreground -k 10

# PYTHON_C needs Python.h, which the programs of tests/c do without.
SOURCES = $(filter-out csrc/python/%,$(wildcard csrc/*/*.c csrc/*/*/*.c))
HEADERS = csrc/rmaext.h $(filter-out csrc/python/%,$(wildcard csrc/*/*.h csrc/*/*/*.h))
PYTHON_C = $(wildcard csrc/python/*.[ch] csrc/python/*/*.[ch])
C_TESTS = $(wildcard tests/c/*/*.c)
WORLDS = am/world shm/locks xfer/meetings
DEMAND = $(wildcard tests/provider/demand/*.c)
SELF_TEST = $(wildcard tests/provider/selftest/*.c)
UCX_STUB = tests/ucx/stub.c tests/ucx/worker.c
DEVICE = $(wildcard tests/device/*.c)
C_FORMATTED = $(SOURCES) $(HEADERS) $(PYTHON_C) $(C_TESTS) \
	$(wildcard tests/c/*.h tests/provider/*/*.[ch] tests/ucx/*.[ch] tests/device/*.[ch] tests/fuzz/*.c \
	docs/contributing/libfabric/*.[ch] benchmarks/containers/*.c)
PY_FORMATTED = setup.py csrc/rooms.py rmaext tests examples benchmarks docs

.DELETE_ON_ERROR:
.PHONY: help demo build develop test test-serial test-scale test-matrix test-stress test-interrupts test-demanding
.PHONY: test-dropin test-verbs test-ucx test-device test-here test-fresh test-wheel test-recipes test-mpis test-aarch64 wheel wheels
.PHONY: bench check check-first check-tests check-serial check-alone check-seeds check-sizes
.PHONY: check-text
.PHONY: docs site compile_commands.json
.PHONY: provider check-c fuzz fuzz-strangers sim sim-faults sim-replay sim-scale asan tsan lint type cover format clean

help: ## this list
	@echo "On a fresh Debian or Ubuntu, make demo and make test do all their own set-up."
	@echo "MPI=openmpi takes Open MPI instead of MPICH, in a virtual environment of its own."
	@echo 'ARGS= is passed on: make test-2 ARGS="tests/ops/test_put_get.py -k put"'
	@echo
	@sed -nE 's/^([a-z][a-z0-9%_.-]*):.*## (.*)/\1\t\2/p' Makefile | expand -t 24

demo: build ## examples/demo.py: two programs, and the same work on MPI.Win and on rmaext
	@$(LAUNCH) --run 0 examples/demo.py $(ARGS)

# -- set-up ----------------------------------------------------------------------
# Whatever is compiled waits for the set-up, which installs the compiler and
# libfabric's headers: a rule that uses $(CC) has a stamp behind its |. No rule makes
# an intermediate file: make would want those before the set-up.

build: $(VENV)/.runs $(VENV)/.extension ## system packages (if missing), virtual environment, extension

develop: build $(VENV)/.tests provider ## the same, and what tests, checks and benchmarks need

# A tree that was moved, or whose Python is gone or another, is set up anew.
MADE = "$$(pwd -P), $$($(PYTHON) -V 2>&1)"
STALE = [ -e $(VENV)/.runs ] && [ "$$(cat $(VENV)/.runs)" != $(MADE) ]
ifneq ($(shell $(STALE) && echo stale),)
.PHONY: $(VENV)/.runs
endif

$(VENV)/.runs: setup.cfg .ci/environment .ci/packages
	@.ci/environment $(VENV) $(MPI)
	@touch $(VENV)/.extension && echo $(MADE) >$@

$(VENV)/.tests: $(VENV)/.runs | $(VENV)/.extension
	@.ci/environment $(VENV) test
	@touch $@

# One extension serves all MPIs: it is linked to none, nor to libfabric.
# The set-up compiles it, too; with -j, make has looked at the stamp before that.
DECLARED = $(addprefix rmaext/,typing.py $(addprefix _native/,cmethods.pyi declared.py build.py))
$(VENV)/.extension: $(SOURCES) $(HEADERS) $(PYTHON_C) $(DECLARED) setup.py setup.cfg | $(VENV)/.runs
	@if [ ! -e $@ ] || [ -n "$$(find $^ -newer $@)" ]; then \
		echo "rmaext: compiling the extension"; \
		$(PYTHON) setup.py -q build_ext --inplace --force && touch $@; fi

# -- tests -----------------------------------------------------------------------

test: develop ## the whole suite: serial tests, then at 1, 2, 3 and 4 ranks
	$(LAUNCH) --workers 4 $(ARGS)

test-serial: develop ## the serial tests
	$(LAUNCH) --sizes 0 $(ARGS)

test-%: develop ## the tests at so many ranks: test-1, test-2, test-3, test-4, test-8
	$(LAUNCH) --sizes $* $(ARGS)

test-scale: develop ## the tests marked scale, at 16 and 64 ranks, some at 128 and 256
	$(LAUNCH) --marks scale --sizes 16,64 --limit 900 $(ARGS)
	$(LAUNCH) --marks scale --sizes 128,256 --limit 1800 tests/jobs/test_scale.py \
		tests/comm/test_rank_table.py $(ARGS)

test-matrix: develop ## every provider and version of libfabric
	$(LAUNCH) --marks matrix --sizes 0,2,4 --limit 5400 $(ARGS)

test-stress: develop ## hours of load
	$(LAUNCH) --marks stress --sizes 0,4 --limit 14800 --ignore=tests/interrupts $(ARGS)
	$(LAUNCH) --marks "stress and pair" --sizes 2 --limit 14800 $(ARGS)

test-interrupts: develop ## hours: each call, ended at every place where that may be
	$(LAUNCH) --marks stress --sizes 0 --limit 14800 tests/interrupts $(ARGS)

# What goes by network: all modes at 1 rank and at 2, what real providers demand at 3 too,
# then some with the MPI's libfabric.
RMA_TESTS = $(addprefix tests/ops/test_,put_get.py atomic.py vectors.py indexing.py requests.py \
	asyncio.py updates.py) $(addprefix tests/window/test_,window.py views.py) \
	$(addprefix tests/sync/test_,notifications.py locks.py epochs.py lost_ranks.py signals.py \
	memory_model.py) $(wildcard tests/*/test_conformance_*.py)
MODES = $(shell $(PYTHON) -c 'import sys; sys.path.insert(0, "tests"); \
	from support import demanding; print(*demanding.MODES)')
REAL_MODES = verbs efa cxi raw+verbs:64 verbs+endpoint+async
WHEEL_MODES = verbs efa cxi raw async local

comma = ,
sizes = $(subst $() ,$(comma),$(strip $(foreach n,$(2),$(foreach m,$(1),$(n):demand-$(m)))))

# Without the tests of 4 GiB: where pages must be there, they all are touched.
DEMANDING = --limit 1200 $(RMA_TESTS) -k 'not GiB' $(ARGS)

test-demanding: develop ## the RMA tests over a provider that demands what NICs do
	$(LAUNCH) --sizes $(call sizes,$(MODES),1 2) $(DEMANDING)
	$(LAUNCH) --sizes $(call sizes,$(REAL_MODES),2 3) --limit 1200 tests/containers -k 'not GiB' $(ARGS)
	$(LAUNCH) --sizes $(call sizes,$(REAL_MODES),3) $(DEMANDING)
	RMAEXT_LIBFABRIC=$(VENV)/lib/$(MPI)/libfabric.so.1 \
	$(LAUNCH) --sizes $(call sizes,$(WHEEL_MODES),1 2) $(DEMANDING)

# In a virtual machine with an RDMA device, see tests/guest/run; 77: there can be none.
# TRANSPORT=ucx: over rc by MPI's UCX.
test-verbs: develop ## the RMA tests over verbs;ofi_rxm, in a virtual machine with soft-RoCE
	status=0; $(if $(filter ucx,$(TRANSPORT)),RMAEXT_TRANSPORT=ucx,RMAEXT_PROVIDER='verbs;ofi_rxm') \
		tests/guest/run -t 14400 $(LAUNCH) \
		--sizes 1:fabric,2:fabric,3:fabric --limit 7200 --timeout 900 \
		$(or $(ARGS),$(RMA_TESTS) -k 'not GiB') || status=$$?; \
	[ $$status = 77 ] || exit $$status

# Over a libucp of the tests, which delays and reorders much of what UCX may, not all:
# tests/ucx/stub.h. Left out: what nobody has flushed may be on its way for long there
# (somebody_looks). Ranks are killed with the delays off (STUB_PROMPT). Puts and gets that are on
# their way to a stopped rank end without it (words_wait, tests of a whole node).
UCX_KILLS = tests/sync/test_lost_ranks.py tests/jobs/test_faults.py -k "(network or killed) and not \
	(words_wait or of_this_node or system)"

# What UCP's page of memory routines has: docs/reference/registration.md.
UCX_PAGE = $(addprefix tests/window/test_,allocation.py misuse.py) tests/remote/test_remote_windows.py

test-ucx: develop ## the RMA tests with UCX as the transport, over a stub of it
	$(LAUNCH) --sizes 0 tests/provider/test_ucx.py $(ARGS)
	$(LAUNCH) --sizes 1:ucx,2:ucx,3:ucx --limit 1800 $(RMA_TESTS) $(UCX_PAGE) -k 'not GiB' $(ARGS)
	$(LAUNCH) --sizes 2:ucx,3:ucx --limit 1800 tests/containers \
		-k 'not GiB and not somebody_looks' $(ARGS)
	STUB_PROMPT=1 $(LAUNCH) --sizes 0:ucx --limit 1800 $(UCX_KILLS) $(ARGS)

# Device memory, over a libcuda of the tests: docs/contributing/device.md.
test-device: develop ## device memory, over a CUDA of our own without a GPU
	RMAEXT_CUDA=$(CURDIR)/build/device/libcuda.so.1 \
	$(LAUNCH) --sizes 0,1:fabric,2:direct,2:fabric,3:mixed,4 tests/device $(ARGS)

# Its own driver, instead of the tests' libcuda; compute-sanitizer looks for wrong accesses.
test-gpu: develop ## device memory, and its times, on this machine's GPU
	@nvidia-smi -L || { echo "make test-gpu needs an NVIDIA GPU and its driver"; exit 1; }
	RMAEXT_CUDA=libcuda.so.1 $(LAUNCH) --sizes 2,4 --limit 120 tests/device $(ARGS)
	! command -v compute-sanitizer || RMAEXT_CUDA=libcuda.so.1 compute-sanitizer \
		--target-processes all --report-api-errors no --error-exitcode 9 \
		$(LAUNCH) --sizes 1 --limit 120 tests/device/test_windows.py
	RMAEXT_CUDA=libcuda.so.1 $(PYTHON) benchmarks/gpu.py

# What a site sends us: build/here/HOST-TIME.tar.gz. PROVIDER='verbs;ofi_rxm', TRANSPORT=ucx;
# ARGS="--minutes 60 tests/ops".
test-here: develop ## the tests, doctor and bench on this machine's own network, for 20 minutes, in one file
	$(if $(TRANSPORT),RMAEXT_TRANSPORT=$(TRANSPORT)) $(if $(PROVIDER),RMAEXT_PROVIDER='$(PROVIDER)') \
		$(PYTHON) tests/here.py $(ARGS) $(if $(findstring tests/,$(ARGS)),,$(RMA_TESTS) -k 'not GiB')

# Downloads them into build/dropin, 600 MB. ARGS="--only nxtval --routes direct"; ARGS="--times 5"
# for the times of docs/guides/adopters.md.
test-dropin: ## programs of others that use MPI.Win, on rmaext, with both MPIs
	$(MAKE) develop MPI=mpich
	$(MAKE) develop MPI=openmpi
	status=0; for venv in .venv .venv-openmpi; do \
		$$venv/bin/python tests/dropin/main.py $(ARGS) || status=1; \
	done; exit $$status

# What a stranger does first, on throw-away machines; ARGS="--list" names the cases.
test-fresh: ## both commands of README where nothing of ours has ever run
	tests/fresh/run.py $(ARGS)

# For this machine and its python3; build/pip is a virtual environment that has pip.
wheel: ## a wheel for this machine's python3, in dist/
	.ci/packages
	python3 -m venv build/pip
	build/pip/bin/pip wheel -q --no-deps -w dist .
	ls -l dist

# Wheels for each Python found, on any Linux of glibc 2.28 or later, and an sdist, in dist/.
wheels: ## the release: wheels for all Pythons, and an sdist, in dist/
	tests/fresh/wheels

# What is in dist/ (make wheels), where there is neither compiler nor libfabric: each Python
# with each MPI that is a wheel; the sdist, where what it needs is missing; and the
# oldest NumPy, mpi4py and cffi that it takes. `test-wheel -r ROOT` is for other Debians.
test-wheel: ## what is in dist/, on machines without a compiler
	tests/fresh/test-wheel
	tests/fresh/test-sdist
	tests/fresh/bounds

# The commands of docs/installing.md; ARGS="docker slurm ..." chooses.
test-recipes: ## containers, Slurm, conda and modules, as in docs/installing.md
	tests/fresh/recipes $(ARGS)

# The tests that the MPI has a say in, with Intel MPI and with Debian's own MPIs.
test-mpis: ## what the MPI has a say in, with Intel MPI and Debian's MPIs
	tests/fresh/mpis $(MPI_SERIAL) -- $(MPI_SIZES)

# The C tests and a job of two ranks on another processor, which QEMU plays.
test-aarch64: ## the C tests and a job on another processor, which QEMU plays
	tests/fresh/aarch64 $(ARGS)

bench: ## the table of targets, next to mpi4py's MPI.Win, and its picture
	$(MAKE) develop MPI=mpich
	$(MAKE) develop MPI=openmpi
	$(LIMIT) 5400 $(PYTHON) benchmarks/table.py $(ARGS)
	$(PYTHON) benchmarks/picture.py build/bench/table.md build/bench/speed.svg

# The tests whose outcome the MPI has a say in: serial ones, and those at some sizes.
MPI_SERIAL = tests/comm/test_collective_errors.py $(addprefix tests/jobs/test_,demo.py faults.py lifecycle.py)
MPI_SIZES = $(wildcard tests/*/test_conformance_*.py) tests/comm/test_collective_errors.py \
	tests/compat tests/containers tests/ops/test_put_get.py $(addprefix tests/sync/test_,memory_model.py \
	progress.py locks.py epochs.py lost_ranks.py signals.py) $(addprefix tests/window/test_, \
	dynamic.py joined.py routes.py shared.py threads.py window.py)

check: ## all that CI runs: lint, type, site, check-c, test with both MPIs
	$(MAKE) check-first
	$(MAKE) check-tests

# A fresh tree's extension is compiled strictly from the start, and check-c not once more.
check-first:
	[ -e .venv/.extension ] || { $(STRICT) $(MAKE) develop MPI=mpich && touch .venv/.strict; }
	$(MAKE) develop MPI=mpich
	$(MAKE) develop MPI=openmpi

check-tests:
	$(MAKE) -j4 -Otarget check-serial check-sizes check-alone check-text

check-text: lint type site
	$(MAKE) test-serial MPI=openmpi ARGS="$(MPI_SERIAL)"
	$(MAKE) test MPI=openmpi ARGS="--sizes 2:direct,3:mixed $(MPI_SIZES)"

check-serial:
	$(MAKE) test-serial MPI=mpich ARGS="--workers 2 --limit 4000 --durations 24"

check-alone:
	$(MAKE) check-c
	$(MAKE) check-seeds

# A minute of new seeds with what check-c has built, in what others leave of the cores.
check-seeds: $(WORLDS:%=build/asan/%)
	for world in $(WORLDS); do MINUTES=0.34 nice -n 19 $(LIMIT) 120 build/asan/$$world \
		$(VENV)/lib/$(MPI)/libfabric.so.1 seeds || exit; done

# The tests of the tests' libcuda are among the serial ones.
SIZES = 1:fabric,2:direct,2:fabric,3:mixed,4
check-sizes:
	$(MAKE) test MPI=mpich ARGS="--sizes $(SIZES)"
	$(MAKE) test-device MPI=mpich ARGS="--sizes $(SIZES)"

# -- C ---------------------------------------------------------------------------

C_FLAGS = -std=c11 -Wall -Wextra -Wpedantic -Wformat-security -fvisibility=hidden -ffp-contract=off -Icsrc
ASAN_FLAGS = -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN_FLAGS = -fsanitize=thread

# Warnings are errors here only: a user's compiler and headers may be newer than ours.
STRICT = CFLAGS="-Wextra -Wformat-security -Werror"

$(VENV)/.strict: $(VENV)/.extension
	$(STRICT) $(PYTHON) setup.py -q build_ext --force \
		--build-temp build/strict --build-lib build/strict
	@touch $@

check-c: $(VENV)/.tests $(VENV)/.strict ## the C side without warnings, its format, its tests
	for file in $(SOURCES); do \
		$(CC) $(C_FLAGS) -Werror -fsyntax-only $$file || exit; done
	for file in $(DEMAND) $(SELF_TEST) $(UCX_STUB) $(DEVICE); do \
		$(CC) $(C_FLAGS) -Werror -O2 -c $$file -o /dev/null || exit; done
	for file in $(HEADERS); do \
		$(CC) $(C_FLAGS) -Werror -fsyntax-only -x c $$file || exit; done
	for file in tests/fuzz/*.c; do \
		$(CC) $(C_FLAGS) -w -fsyntax-only $$file || exit; done
	for file in docs/contributing/libfabric/*.c; do \
		$(CC) -std=gnu11 -Wall -Wextra -Werror -O1 $$file -o /dev/null -lfabric || exit; done
	$(VENV)/bin/clang-format --dry-run --Werror $(C_FORMATTED)
	tests/ucx/check-abi
	$(MAKE) asan

# Each file in a room of tests/c is a program, linked with all of csrc but python. Objects
# and programs keep their room in their path: build/asan/net/endpoint.
$(SOURCES:csrc/%.c=build/asan/obj/%.o): build/asan/obj/%.o: csrc/%.c $(HEADERS) | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(ASAN_FLAGS) -g -O1 -c $< -o $@

$(C_TESTS:tests/c/%.c=build/asan/%): build/asan/%: tests/c/%.c $(SOURCES:csrc/%.c=build/asan/obj/%.o) $(wildcard tests/c/*.h)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -Itests/c $(ASAN_FLAGS) -g -O1 $(filter %.c %.o,$^) -o $@ -pthread -ldl

$(SOURCES:csrc/%.c=build/tsan/obj/%.o): build/tsan/obj/%.o: csrc/%.c $(HEADERS) | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(TSAN_FLAGS) -g -O1 -c $< -o $@

$(C_TESTS:tests/c/%.c=build/tsan/%): build/tsan/%: tests/c/%.c $(SOURCES:csrc/%.c=build/tsan/obj/%.o) $(wildcard tests/c/*.h)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -Itests/c $(TSAN_FLAGS) -g -O1 $(filter %.c %.o,$^) -o $@ -pthread -ldl

# A libfabric provider for tests only: tests/provider/demand/demand.h says what it does.
provider: build/provider/demand-fi.so build/provider/selftest build/provider/ucx-stub.so \
	build/device/libcuda.so.1

build/provider/demand-fi.so: $(DEMAND) tests/provider/demand/demand.h csrc/net/libfabric/quirks.h | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -g -O2 -shared -fPIC $(DEMAND) -o $@.new -pthread -ldl
	mv $@.new $@ # others may have it mapped

# A libucp for tests only: tests/ucx/stub.h says what it does.
build/provider/ucx-stub.so: $(UCX_STUB) tests/ucx/stub.h csrc/net/ucx/abi.h | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Wpedantic -Icsrc -g -O2 -shared -fPIC -Wl,-Bsymbolic \
		$(UCX_STUB) -o $@.new -pthread
	mv $@.new $@ # others may have it mapped

# A libcuda for tests only: tests/device/device.h says what it does.
build/device/libcuda.so.1: $(DEVICE) $(wildcard tests/device/*.h) | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) -std=c11 -Wall -Wextra -Wpedantic -g -O2 -shared -fPIC -Wl,-Bsymbolic \
		$(DEVICE) -o $@.new -pthread
	mv $@.new $@ # others may have it mapped

build/provider/selftest: $(SELF_TEST) tests/provider/selftest/selftest.h csrc/net/libfabric/quirks.h | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -g -O1 $(SELF_TEST) -o $@ -pthread -ldl

build/asan/net/registration_cache build/tsan/net/registration_cache: build/provider/demand-fi.so
build/asan/net/ucx build/tsan/net/ucx: build/provider/ucx-stub.so

# A target each, so that `make -j2` runs two at a time.
ASAN_RUNS = $(C_TESTS:tests/c/%.c=asan-%)
.PHONY: $(ASAN_RUNS)

asan: $(ASAN_RUNS) ## the C tests under AddressSanitizer and UBSan

$(ASAN_RUNS): asan-%: build/asan/%
	$(LIMIT) 600 $<

# setarch -R: gcc 12's TSan cannot place its shadow memory at random addresses.
# The worlds have one thread, and contexts that TSan does not know.
tsan: $(filter-out $(WORLDS:%=build/tsan/%) build/tsan/xfer/scale,$(C_TESTS:tests/c/%.c=build/tsan/%)) ## the same under ThreadSanitizer
	for program in $^; do \
		TSAN_OPTIONS=ignore_noninstrumented_modules=1:die_after_fork=0 \
		$(LIMIT) 900 setarch -R $$program || exit; done

# Ranks in one process and one thread, whose seed orders all that happens: tests/c/world.h.
# SEED=17 is that one alone, and its last line the hash of its history; with CHART=17.svg a
# failure is made as small as it can be, and drawn. WORLD=shm/locks is one of them.

$(SOURCES:csrc/%.c=build/sim/obj/%.o): build/sim/obj/%.o: csrc/%.c $(HEADERS) | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -w -O2 -g -c $< -o $@

$(WORLDS:%=build/sim/%): build/sim/%: tests/c/%.c $(SOURCES:csrc/%.c=build/sim/obj/%.o) $(wildcard tests/c/*.h)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) -w -Itests/c -O2 -g $(filter %.c %.o,$^) -o $@ -pthread -ldl

sim: MINUTES = 1
sim: WORLD = $(WORLDS)
sim: RUN = $(if $(SEED),SEED=$(SEED),MINUTES=$(MINUTES)) $(LIMIT) 36000
sim: DRAW = $(LIMIT) 3600 $(PYTHON) tests/world/chart.py
sim: $(WORLDS:%=build/sim/%) ## protocols in a simulated world: MINUTES=1 of new seeds for each; SEED=17; CHART=17.svg
	for world in $(WORLD); do \
		$(if $(CHART),$(DRAW),$(RUN)) build/sim/$$world $(VENV)/lib/$(MPI)/libfabric.so.1 \
		$(if $(CHART),$(SEED) $(CHART),seeds) || exit; done

# The same sources, for many ranks: locks keep a square of them.
build/sim/scale: tests/c/xfer/scale.c
build/sim/crowd: tests/c/shm/locks.c
build/sim/scale build/sim/crowd: $(SOURCES:csrc/%.c=build/sim/obj/%.o) $(wildcard tests/c/*.h) | $(VENV)/.runs
	$(CC) $(C_FLAGS) -w -Itests/c -O2 -g -DWORLD_RANKS=$(if $(filter %scale,$@),16384,1024) $(filter %.c %.o,$^) -o $@ -pthread -ldl

sim-scale: $(VENV)/.tests build/sim/scale build/sim/crowd ## what protocols cost with up to 16,384 ranks: a table, and docs/pictures/scale.svg
	$(LIMIT) 3600 $(PYTHON) tests/world/scale.py $(VENV)/lib/$(MPI)/libfabric.so.1 docs/pictures/scale.svg

sim-replay: $(WORLDS:%=build/sim/%) ## the same seeds here and in an emulated machine: the same histories
	$(LIMIT) 1800 $(PYTHON) tests/world/replay.py $(VENV)/lib/$(MPI)/libfabric.so.1 $^

sim-faults: $(VENV)/.runs ## faults planted in the protocols: does that world find each?
	$(LIMIT) 14400 $(PYTHON) tests/world/faults.py $(ARGS)

# Coverage-guided: libFuzzer, with the checks of `make asan`, and atheris. They end
# with "stat::number_of_executed_units"; "cov" is how many branches were reached.
RUNS = 1000000
CLANG = clang
FUZZ_FLAGS = -std=c11 -w -Icsrc -g -O1 $(ASAN_FLAGS)
FUZZ = -runs=$(RUNS) -max_len=4096 -print_final_stats=1 -artifact_prefix=build/fuzz/

$(SOURCES:csrc/%.c=build/fuzz/obj/%.o): build/fuzz/obj/%.o: csrc/%.c $(HEADERS) | $(VENV)/.runs
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

build/fuzz/%: tests/fuzz/%.c $(SOURCES:csrc/%.c=build/fuzz/obj/%.o)
	$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer $^ -o $@ -pthread -ldl -lm

fuzz: develop ## any bytes to the decoders of C and Python, RUNS=1000000 times each
	@command -v $(CLANG) >/dev/null || { echo "make fuzz needs $(CLANG)"; exit 1; }
	$(PYTHON) -m pip install -q --no-build-isolation -e '.[fuzz]'
	$(MAKE) build/fuzz/messages build/fuzz/columns
	@mkdir -p $(addprefix build/fuzz/corpus/,messages columns records)
	$(PYTHON) tests/fuzz/seeds.py build/fuzz/seeds
	ASAN_OPTIONS=detect_leaks=0 $(LIMIT) 3600 build/fuzz/messages $(FUZZ) \
		build/fuzz/corpus/messages build/fuzz/seeds/messages
	$(LIMIT) 3600 build/fuzz/columns $(FUZZ) \
		build/fuzz/corpus/columns build/fuzz/seeds/columns
	$(LIMIT) 3600 $(PYTHON) tests/fuzz/records.py $(FUZZ) \
		build/fuzz/corpus/records build/fuzz/seeds/records

# Needs root, for namespaces and other users. A failure is in build/fuzz/strangers.
fuzz-strangers: MINUTES = 30
fuzz-strangers: develop ## wrong streams to a job's ports, from another user and another host, MINUTES=30 each
	for library in system wheel; do for source in user host; do \
		$(PYTHON) tests/fuzz/strangers.py --minutes $(MINUTES) --libfabric $$library \
			--source $$source --refused $(ARGS) || exit; done; done

# -- documents --------------------------------------------------------------------

$(VENV)/.docs: $(VENV)/.tests
	@.ci/environment $(VENV) docs
	@touch $@

# Every warning is an error. The examples run under mpiexec for the gallery's pictures.
site: develop $(VENV)/.docs ## the site, in build/docs/html
	LAUNCH="$(LAUNCH)" $(LIMIT) 900 $(PYTHON) -m sphinx -W -n --keep-going -q docs build/docs/html

docs: site ## the site, and the programs and examples in documents and docstrings
	$(LAUNCH) --sizes 0 tests/unit/test_documents.py tests/unit/test_docstrings.py

# -- style -----------------------------------------------------------------------

lint: $(VENV)/.tests ## ruff, import-linter, clang-format
	$(VENV)/bin/ruff check $(PY_FORMATTED)
	$(VENV)/bin/ruff format --check $(PY_FORMATTED)
	$(VENV)/bin/lint-imports --no-cache --no-logo
	$(PYTHON) csrc/rooms.py
	$(VENV)/bin/clang-format --dry-run --Werror $(C_FORMATTED)

type: $(VENV)/.tests ## mypy --strict
	$(VENV)/bin/mypy rmaext

format: $(VENV)/.tests ## let ruff and clang-format change the files
	$(VENV)/bin/ruff check --fix-only $(PY_FORMATTED)
	$(VENV)/bin/ruff format $(PY_FORMATTED)
	$(VENV)/bin/clang-format -i $(C_FORMATTED)

# For clangd: as the extension is compiled, and the tests in C as `make asan` does.
compile_commands.json: $(VENV)/.runs ## how each C file is compiled, for editors
	@$(PYTHON) .ci/compile_commands "$(C_FLAGS) -Itests/c" $(SOURCES) $(filter %.c,$(PYTHON_C)) \
		$(C_TESTS) $(DEMAND) $(SELF_TEST) >$@

cover: develop ## which lines of Python the tests reach
	rm -rf build/cover && mkdir -p build/cover
	$(LAUNCH) --cover --sizes 0,1,2,3 $(ARGS)
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report

clean: ## remove all that was made, virtual environments too
	rm -rf build dist .venv .venv-openmpi .venv-intelmpi *.egg-info rmaext/_native/*.so rmaext/_native/_lib.c
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
