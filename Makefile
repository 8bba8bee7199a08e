# tilegrad's chores. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
READY := $(VENV)/.ready
TOOLS := $(VENV)/.left-out-tools

# Compiled once and kept apart from the sources, whatever the caller has set: tests start hundreds of commands.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache

.DEFAULT_GOAL := help
.PHONY: help demo test check matrix calibrate bench docs results lint types fast-tests tests clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# One folder with everything Python needs. tools/bootstrap.sh says what it installs and what it had to leave out.
.venv: $(READY) ## create .venv with tilegrad, its tests' packages and, if it can be had, PyTorch

$(READY): pyproject.toml tools/bootstrap.sh tools/apt.sh
	@PYTHON="$(PYTHON)" sh tools/bootstrap.sh "$(VENV)"
	@touch $@

# Compilers and emulators of the boards, which the tests take if they can be had.
$(TOOLS): $(READY) tools/cross_tools.sh
	@sh tools/cross_tools.sh $@

demo: $(READY) ## train a model on the simulated chip untiled, tiled and double buffered: cycles, memory, verdict
	$(BIN)/tilegrad compare resnet8 --l1 128K
	$(BIN)/tilegrad train resnet8 --l1 128K -o demo-out

test: lint types tests ## everything: lint, types, and every test

check: lint types fast-tests ## before a commit, under two minutes: lint, types, and the tests that are not slow

matrix: $(TOOLS) ## hours: what is too long for `make test`: every zoo model in every way on the simulated chips, all node cases, all faults
	$(BIN)/python -m pytest -n $(JOBS) -m matrix

calibrate: $(TOOLS) ## ten minutes: count every kernel under QEMU (RV32), measure on iss:siracusa, write the tables of estimated cycles
	$(BIN)/python -m tilegrad.calibration
	$(BIN)/python -m tilegrad.calibration.compare
	$(BIN)/python -m tilegrad.calibration.chip

bench: $(TOOLS) ## one training step of each zoo model against PyTorch, inference against ONNX Runtime, instructions on RISC-V, cycles on a cluster
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.instructions
	$(BIN)/python -m benchmarks.cluster

docs: $(READY) ## the documentation as a site for reading from disk: build/site/index.html
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/site.py build/site

results: bench ## measure again, and bring the figures that documents quote up to date
	$(BIN)/python -m tests.docs --update --figures README.md

lint: $(READY)
	$(BIN)/ruff check

types: $(READY)
	$(BIN)/mypy

tests: $(TOOLS)
	@cat $(VENV)/.left-out $(TOOLS)
	$(BIN)/python -m pytest -n $(JOBS)

# The folders that drill every operator and every reference take minutes; two operators stand for them here.
FAST := $(filter-out tests/ops tests/verify tests/backend tests/frontend tests/support, \
	$(patsubst %/,%,$(wildcard tests/*/))) \
	$(wildcard tests/test_*.py) tests/frontend/test_load.py tests/ops/test_gemm.py tests/ops/test_relu.py

fast-tests: $(TOOLS)
	@cat $(VENV)/.left-out $(TOOLS)
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not matrix" $(FAST)

clean: ## remove what make made (not demo-out/)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
