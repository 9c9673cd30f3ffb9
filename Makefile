# Two commands set everything up by themselves: `make quickstart` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
PIP = $(VENV)/bin/pip
RUN = $(VENV)/bin/python
TORCH ?= torch==2.13.0

.PHONY: setup quickstart test test-triton test-mutations test-types test-store lint bench clean

$(VENV)/ready: pyproject.toml setup.py $(wildcard jitshape/frontend/*.c jitshape/frontend/*.h jitshape/backend/*.c)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q $(TORCH)
	$(PIP) install -q $(TORCH) "setuptools>=68" wheel
	$(PIP) install -q $(TORCH) --no-build-isolation -e ".[test,models]"
	touch $@

setup: $(VENV)/ready

quickstart: setup
	$(RUN) examples/quickstart.py

test: setup
	$(RUN) -m ruff check jitshape tests examples
	$(RUN) -m ruff format --check jitshape tests examples
	$(RUN) -m pyright jitshape/ir jitshape/backend
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q -n 2 --dist loadfile tests

test-triton: setup
	TRITON_EXAMPLES=200 OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/backend/test_triton_jit.py tests/backend/codegen/test_triton.py tests/gpu
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/backend/test_quality.py --all-kernels

test-mutations: setup
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/programs --all-mutations

test-types: setup
	TYPE_EXAMPLES=300 OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/ir/ops/test_layouts.py

test-store: setup
	OMP_NUM_THREADS=1 $(RUN) -m pytest -q tests/cache --store-faults 200

lint: setup
	$(RUN) -m ruff check jitshape tests examples
	$(RUN) -m pyright jitshape/ir jitshape/backend

clean:
	rm -rf $(VENV) build *.egg-info jitshape/frontend/*.so jitshape/backend/*.so
