PYTHON ?= python3
CXX_FILES = $(shell git ls-files '*.cpp' '*.h' '*.inl' '*.cu' '*.inc')

.PHONY: build test test-all compatibility fuzz sanitize bench docs lint format clean

build:  ## the C++ backend, in place
	$(PYTHON) setup.py build_ext --inplace

test:
	$(PYTHON) -m pytest

test-all:  ## every case of every table, where `make test` takes those in which each pair of values meets; hours
	AIRLLM_TEST_ALL=1 $(PYTHON) -m pytest -n auto --dist loadfile

compatibility:  ## a wheel for each Python, with the oldest and the newest packages: make compatibility ARGS="--python 3.12"
	$(PYTHON) -m tests.compatibility $(ARGS)

fuzz:  ## each target for some minutes: make fuzz ARGS="--seconds 600 --seed 7"
	$(PYTHON) -m tests.fuzz $(or $(ARGS),--seconds 300)

sanitize:  ## the C++ extension under sanitizers; it compiles for minutes
	$(PYTHON) -m tests.sanitized address
	$(PYTHON) -m pytest -q tests/backends/test_cpu_kernels.py -k "without_a_race or undefined"

bench:  ## builds, checks and times everything there is; --quick for a minute: make bench ARGS=--quick
	$(PYTHON) detect_and_benchmark.py $(ARGS)

docs:  ## the documentation site; a warning is an error. Its first page is docs/_build/html/index.html
	$(PYTHON) -m sphinx -q -W --keep-going -E -b html docs docs/_build/html

lint:
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run -Werror $(CXX_FILES)

format:
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FILES)

clean:  ## what the builds have made
	rm -rf build dist benchmark_report docs/_build docs/plots cpp_ext/*.egg-info cpp_ext/*.so cpp_ext/tensor_ops_cpp.py
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
