# Each target sets up what it needs in .venv; nothing else has to be installed than Python 3.11+, make and a C++20 compiler.
PYTHON ?= python3
TEST_PROCESSES ?= 2
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find llmsim/native astra-sim -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt' 2>/dev/null)
PYTHON_FILES := $(sort $(shell find llmsim -name '*.py'))
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
DOCS := $(VENV)/.docs
EXTRA = $(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'], sep='\n')"

.PHONY: conformance run test test-wheel replay fuzz fuzz-strict bench lint format docs stubs sanitize mutate clean always

run: $(STAMP)
	$(BIN)/python main.py --cluster-config cluster_config/h100_llama31_8b.json --dataset dataset/chat_h100_300.jsonl \
		--output outputs/example.csv --run-dir outputs/example

# Each of the processes starts with one half of the tests, whole files so that their fixtures are made once, and takes
# over from the other when it is done first. Plain `pytest` runs them one after the other. They write the bytecode of tests,
# which takes as long to make as the whole collection.
test: $(STAMP) $(TOOLS)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal --durations=12

# The tests with the wheel of PYTHON's version, installed in an environment of its own, in a copy of the tree without the
# package's folder: what users have. Tests of the sources skip there. TESTS names fewer.
WHEEL := build/wheel
test-wheel:
	rm -rf $(WHEEL) && mkdir -p $(WHEEL)/tree
	$(PYTHON) -m venv $(WHEEL)/venv
	$(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'], sep='\n')" > $(WHEEL)/dev.txt
	$(WHEEL)/venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEEL) .
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(WHEEL)/llmsim-*.whl -r $(WHEEL)/dev.txt
	git ls-files -z --cached --others --exclude-standard | tar --create --null --exclude './llmsim' --exclude 'llmsim/*' --files-from - | tar --extract --directory $(WHEEL)/tree
	cd $(WHEEL)/tree && ../venv/bin/python -m pytest -n $(TEST_PROCESSES) --dist worksteal $(TESTS)

# The same bytes as before: every bundled cluster and one run for each option with a path of its own, compared with the
# committed digests (tests/replay). `cd tests && python -m replay --accept` replaces them.
replay: $(STAMP) $(TOOLS)
	cd tests && PYTHONPATH=.. ../$(BIN)/python -m replay

# Damaged inputs for every reader, and the property tests with other examples than those of `make test`. The seeds are
# printed; COUNT inputs in all, TARGET the beginnings of readers' names (`trace.,spec.`), SEED the first seed.
fuzz: $(STAMP) $(TOOLS)
	PYTHONPATH=tests $(BIN)/python -m fuzz --count $(or $(COUNT),20000) --target "$(TARGET)" $(if $(SEED),--seed $(SEED))
	$(if $(TARGET),,HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -m hypothesis)

# Random cases by strict rules and by a stock ASTRA-sim, the executable UPSTREAM (docs/explanation/engine_checks.md). COUNT cases
# from SEED on; BACKEND aware or unaware, where the name of the executable does not say.
fuzz-strict: $(STAMP) $(TOOLS)
	@test -n "$(UPSTREAM)" || { echo "error: UPSTREAM is missing; make fuzz-strict UPSTREAM=PATH names a stock ASTRA-sim" >&2; exit 2; }
	cd tests && PYTHONPATH=.:.. ../$(BIN)/python -m engine.upstream $(abspath $(UPSTREAM)) --count $(or $(COUNT),1000) --seed $(SEED) \
		$(if $(BACKEND),--backend $(BACKEND))

# Environments with the Python parts of vLLM and SGLang (no GPU is needed; 2 to 3 GB each), then COUNT random configurations of 300
# requests each: make conformance VLLM=0.33.0 SGLANG=0.5.23. FIRST is the first one's seed; `newest` asks the registry for the release.
INSTALL = $(PYTHON) tests/conformance/install_engine.py
COMPARE = --cases $(or $(COUNT),100) --seed $(or $(FIRST),0)
conformance: $(STAMP)
	@test -n "$(VLLM)$(SGLANG)" || { echo "error: VLLM and SGLANG are missing; make conformance VLLM=0.33.0 names a release" >&2; exit 2; }
	$(if $(VLLM),engine=$$($(INSTALL) vllm $(VLLM) build/engines) && $(BIN)/python -m llmsim conformance vllm --engine-python $$engine $(COMPARE))
	$(if $(SGLANG),engine=$$($(INSTALL) sglang $(SGLANG) build/engines) && $(BIN)/python -m llmsim conformance sglang --engine-python $$engine $(COMPARE))

bench: $(STAMP) $(TOOLS)
	$(BIN)/python -m bench

lint: $(STAMP) $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(filter %.cpp %.h,$(NATIVE))

format: $(STAMP) $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.cpp %.h,$(NATIVE))

# The documentation as a site in build/site, with the extra "docs"; any warning fails. build/site/index.html opens without a network.
docs: $(STAMP) $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

# The types of the native module for mypy and editors; after a change of its bindings (tests/cli/test_stubs.py). They lie
# beside the package's modules: a folder `_native` would stand for the module where it is not built.
STUBS := build/stubs/_native
stubs: $(STAMP)
	rm -rf $(STUBS) && mkdir -p $(dir $(STUBS))
	$(BIN)/python -m nanobind.stubgen -q -m llmsim._native -r -O $(dir $(STUBS))
	sed -e 's/: getset_descriptor = \.\.\./: int/' -e 's/^from llmsim._native import engine as engine/from llmsim import _native_engine\n\nengine = _native_engine/' \
		$(STUBS)/__init__.pyi > llmsim/_native.pyi
	cp $(STUBS)/engine.pyi llmsim/_native_engine.pyi

# AddressSanitizer and UndefinedBehaviorSanitizer over the engine (its C++ tests, its command) and over the native module
# under the Python tests of what it runs; `sh tests/sanitize.sh native TESTS` runs others.
sanitize: $(STAMP) $(TOOLS)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/sanitize.sh

# Changes the program in COUNT small ways and lists the changes that no test notices (docs/explanation/testing.md). ROOT: folders or
# patterns of files; AT: lines instead, each as file:line; AGAIN: the survivors of a report; BUDGET: seconds of tests for a survivor;
# MAP=new: notes again what tests reach.
SEED ?= 1
COUNT ?= 20
MAP ?= updated
BUDGET ?= 60
ROOT ?= llmsim/native llmsim/lowering llmsim/costs llmsim/results
MUTANTS = $(if $(AT),--at $(AT),$(if $(AGAIN),--again $(abspath $(AGAIN)),--root $(foreach each,$(ROOT),'$(each)')))
mutate: $(STAMP) $(TOOLS)
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m mutation --seed $(SEED) --count $(COUNT) --budget $(BUDGET) --map $(MAP) $(MUTANTS)

# Editable: Python changes are seen at once; new Python files, and changes of the native sources, install again. The
# bytecode is written here, because where Python may write none (PYTHONDONTWRITEBYTECODE) each run would compile it.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE) $(VENV)/.files
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "scikit-build-core>=0.10" "nanobind>=2.4" "cmake>=3.20" ninja
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -e .
	$(BIN)/python -m compileall -q llmsim
	touch $@

# What tests and linters need on top: the extra "dev" of pyproject.toml.
$(TOOLS): pyproject.toml $(STAMP)
	$(call EXTRA,dev) > $(VENV)/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/dev.txt
	touch $@

$(DOCS): pyproject.toml $(STAMP)
	$(call EXTRA,docs) > $(VENV)/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/docs.txt
	touch $@

$(VENV)/.files: always
	@mkdir -p $(VENV)
	@echo $(PYTHON_FILES) | cmp -s - $@ || echo $(PYTHON_FILES) > $@

clean:
	rm -rf $(VENV) build outputs
