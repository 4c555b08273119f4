# make demo, make test: everything from a fresh clone (Debian, Python >= 3.10, g++, make). A second run sets nothing up.
# make demo builds what the demo runs; the other targets build the rest once.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
# Compute capability that the CUDA library is built for, where there is nvcc: the GPU's here, or a Hopper's. All that are
# supported take several times as long: make setup CUDA_ARCHS=
CUDA_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .),90)

# As CUDA_ARCHS, for make wheel; empty: all.
WHEEL_ARCHS ?=

BIN := $(VENV)/bin
# $(call cmake,ARCHS): how to build. Each environment has build folders of its own, one for each set of architectures.
cmake = -C build-dir=$(abspath $(VENV))/build/cuda-$(or $(subst ;,-,$1),all) -C cmake.define.CMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -C "cmake.define.SPECDEC_CUDA_ARCHS=$1" -C cmake.define.SPECDEC_STRICT=ON
EDITABLE := $(call cmake,$(CUDA_ARCHS)) -C cmake.define.SPECDEC_CUDA_HOST=ON --no-build-isolation --editable
# For the demo: the backends of a CPU, and the emulator as it runs fast. Warnings of a compiler unknown to us are no errors.
DEMO := -C build-dir=$(abspath $(VENV))/build/demo -C cmake.define.SPECDEC_CUDA=OFF \
  -C cmake.define.SPECDEC_XPU_SIM_STRICT=OFF --no-build-isolation --editable ".[paddle,models,conformance]"
TEST := $(EDITABLE) ".[paddle,models,test]"
DEV := $(EDITABLE) ".[dev,docs]"
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# pip compiles the modules that it installs, and not those of an editable package: each process would compile them where
# it may not write (containers, PYTHONDONTWRITEBYTECODE).
COMPILE := $(BIN)/python -m compileall -q -j $(JOBS) specdec_hal backends
BUILD_TOOLS := "pip>=23.1" "scikit-build-core>=1.0" "apache-tvm-ffi>=0.1.9,<0.2" "numpy>=1.24" "setuptools>=77" cmake ninja
NATIVE := CMakeLists.txt $(shell find kernels_* specdec_hal/*/native specdec_hal/ops -type f -not -name '*.md' 2>/dev/null)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: help release changelog site demo test test-slow test-all fuzz soak conformance gpu-test engine-test wheel lint typecheck clang setup clean distclean
.DELETE_ON_ERROR:

help:
	@echo "make demo       generate text with the embedded model and n-gram drafts: two minutes in a fresh clone"
	@echo "make test       run the fast tests (JOBS=$(JOBS) processes; PYTEST_ARGS=... is passed on)"
	@echo "make test-all   run all of them: also make test-slow, which has mutants and the strict emulator's conformance"
	@echo "make fuzz       run each fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS); FUZZ_SEED=N repeats a finding"
	@echo "make wheel      build the wheel for all CUDA architectures into dist/, install it elsewhere and try it"
	@echo "make release    what an index needs, of a tag: source archive and wheels, built, checked, installed and tried"
	@echo "make changelog  the fragments of changelog.d into CHANGELOG.md, for VERSION=X.Y.Z"
	@echo "make soak       faults, kills and overload: SOAK_SECONDS=$(SOAK_SECONDS) on each backend of a CPU and for the server"
	@echo "make gpu-test   what needs an NVIDIA GPU: tests and compute-sanitizer (PyTorch with CUDA and CuPy must be installed)"
	@echo "make engine-test  the proposer inside vLLM's CPU build, which is installed into build/engine-venv"
	@echo "make conformance  prove the built-in backends and write docs/reference/support.csv"
	@echo "make site       the documentation as a site in build/site; fails on a link that leads nowhere"
	@echo "make lint       ruff, clang-format, clang-tidy, prose: format, common mistakes, long sentences"
	@echo "make typecheck  mypy --strict"
	@echo "make clang      compile the native libraries with clang too, warnings being errors"
	@echo "make setup      only create $(VENV) and install into it"
	@echo "make clean      remove what was built; distclean removes $(VENV) too"

# $(call timed,WHAT,COMMAND): say what is done, then how long it has taken.
timed = echo "$1" && start=$$(date +%s) && { $2; } && echo "  took $$(($$(date +%s) - start)) s"

define NEXT

Next:
  $(BIN)/specdec-hal generate --config configs/cpu.yaml --prompt 'def fibonacci(n):' --max-new-tokens 48
  $(BIN)/specdec-hal compare --config configs/cpu.yaml --prompt-file examples/prompts/edit_function.txt --max-new-tokens 48
  $(BIN)/specdec-hal explain verify_draft_tokens
endef
export NEXT

demo: $(or $(wildcard $(VENV)/.installed),$(VENV)/.demo)
	$(BIN)/specdec-hal generate --config configs/cpu.yaml --prompt-file examples/prompts/edit_function.txt --max-new-tokens 128
	@echo "$$NEXT"

# One thread for each test process: the machine is filled by the processes, and results do not depend on its size.
# A process keeps to its part of the files, so that it makes their fixtures once, and takes from another's when it is done.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test: $(VENV)/.installed
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.installed
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-all: $(VENV)/.installed
	$(PYTEST) $(PYTEST_ARGS)

SOAK_SECONDS ?= 600

soak: $(VENV)/.installed
	$(BIN)/python tools/soak.py --seconds $(SOAK_SECONDS) --backend reference
	$(BIN)/python tools/soak.py --seconds $(SOAK_SECONDS) --backend cpu
	$(BIN)/python tools/soak_serving.py --kills 100
	$(BIN)/python tools/soak_serving.py --seconds $(SOAK_SECONDS)
	SOAK_KILLS=200 $(PYTEST) -m slow tests/runner/test_journal.py

FUZZ_SECONDS ?= 30

fuzz: $(VENV)/.installed
	rm -rf build/fuzz
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(PYTEST) tests/fuzz $(PYTEST_ARGS) || { tail -v -n 1 build/fuzz/*; exit 1; }

gpu-test: $(VENV)/.installed
	PYTHON=$(BIN)/python tools/gpu_check.sh

engine-test: $(VENV)/.installed
	PYTHON=$(BIN)/python tools/engine_test.sh $(PYTEST_ARGS)

# NumPy draws too slowly for the full number of samples.
conformance: $(VENV)/.installed
	mkdir -p build
	$(BIN)/specdec-hal conformance --backend reference --samples 4096 --coverage --json > build/conformance-reference.json
	$(BIN)/specdec-hal conformance --backend cpu --coverage --json > build/conformance-cpu.json
	$(BIN)/specdec-hal conformance --backend xpu_sim --coverage --json > build/conformance-xpu_sim.json
	$(BIN)/python -m specdec_hal_conformance.matrix docs/reference/support build/conformance-*.json

wheel: $(VENV)/.installed
	rm -f dist/specdec_hal-*.whl
	$(PIP) wheel $(call cmake,$(WHEEL_ARCHS)) -C cmake.define.SPECDEC_CUDA_HOST=OFF --no-build-isolation --no-deps --wheel-dir dist .
	$(PYTEST) --dist loadfile tests/wheel --wheel dist/specdec_hal-*.whl

# The archives of an index, built and checked; RELEASE="--dev --archs 90" rehearses it on any tree.
RELEASE ?=

release: $(BIN)/python
	$(BIN)/python tools/release.py $(RELEASE)

# The fragments of changelog.d into CHANGELOG.md: before the tag.
changelog: $(VENV)/.build-tools
	@test -n "$(VERSION)" || { echo "error: name the version: make changelog VERSION=0.2.0" >&2; exit 1; }
	$(PIP) install "towncrier>=23"
	$(BIN)/towncrier build --yes --version $(VERSION)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/prose.py
	$(BIN)/proselint check $$(git ls-files '*.md' ':!models' ':!*/killed.md')
	find kernels_* specdec_hal/*/native tests examples -type f -regextype posix-extended -regex '.*\.(h|cc|cpp|cuh?|xpu)' -print0 \
	  | xargs -0 $(BIN)/clang-format --dry-run --Werror
	$(BIN)/hadolint --ignore DL3008 Dockerfile deploy/gpu.Dockerfile
	$(BIN)/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml
	JOBS=$(JOBS) $(BIN)/python tools/tidy.py

site: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

typecheck: $(VENV)/.dev
	$(BIN)/mypy

# Without CUDA: nvcc takes g++ for the host's part in any case. Nothing runs what is built, so it is not optimised.
clang: $(VENV)/.build-tools
	CXX=clang++ $(BIN)/cmake -G Ninja -S . -B $(VENV)/build/clang -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DSPECDEC_STRICT=ON -DSPECDEC_CUDA=OFF -DCMAKE_CXX_FLAGS_RELEASE=-O0
	$(BIN)/cmake --build $(VENV)/build/clang

setup: $(VENV)/.installed

clean:
	rm -rf build dist $(VENV)/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.demo $(VENV)/.installed $(VENV)/.dev

distclean: clean
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: $(PYTHON) is older than 3.10 or missing; choose another: make PYTHON=python3.12" >&2; exit 1; }
	@command -v $${CXX:-g++} > /dev/null || { echo "error: no C++ compiler; install it: apt-get install g++" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "error: $(PYTHON) cannot create environments; install: apt-get install python3-venv" >&2; exit 1; }

# Build tools first, then the package with --no-build-isolation: CMake keeps the path of the Python that configured it,
# and an isolated environment is gone when the next build needs it.
$(VENV)/.build-tools: pyproject.toml | $(BIN)/python
	@$(call timed,Installing build tools into $(VENV): about 15 s,$(PIP) install $(BUILD_TOOLS))
	@touch $@

$(VENV)/.demo: pyproject.toml $(NATIVE) | $(VENV)/.build-tools
	@$(call timed,Compiling the emulator and installing PaddlePaddle: about 90 s on two cores,$(PIP) install $(DEMO) && $(COMPILE))
	@touch $@

$(VENV)/.installed: pyproject.toml $(NATIVE) | $(VENV)/.build-tools
	@$(call timed,Compiling every library and installing what the tests need: about 10 minutes on two cores,$(PIP) install $(TEST) && $(COMPILE))
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(VENV)/.installed
	@$(call timed,Installing linters and mkdocs,$(PIP) install $(DEV))
	@touch $@
