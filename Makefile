# `make demo` and `make test` need nothing but Python 3.11 and a package index.
PYTHON ?= python3
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin

VLLM := .venv-vllm
RANGES := $(VENV)/ranges
RESOLUTION ?= lowest-direct

.PHONY: demo vllm test test-extended test-all test-slow check-ordering faults io-faults gpu-check check-gpu-pins check-ranges paper paper-full docs lint clean

demo: $(VENV)/.installed
	$(BIN)/python -m topr_exp

# Bytecode is kept, whatever the variables of the shell: a hundred processes import the same modules.
test: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# About half an hour more: variants of whole runs, statistics of minutes, Slurm and vLLM at length, the figures.
test-extended: $(VENV)/.installed-dev
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'extended and not slow'

test-all: test test-extended

# Hours: the checks that are too long for every change.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

# Minutes: Figure 1's ordering, seven algorithms on two seeds.
check-ordering: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -s -m slow tests/test_ordering.py

# An hour; the same command goes on where it stopped: do the tests catch the faults of scripts/faults (at most 100,
# where a number would be wrong in silence), one at a time?
faults: $(VENV)/.installed-dev
	nice -n 5 $(BIN)/python -m scripts.faults

# Ten minutes: does a run of which a write, fsync, rename, unlink, open, read, close, stat or lock fails go on to the files
# of a whole run? 300 points.
io-faults: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.io_faults

# At most 45 minutes on one GPU of 80 GB or more: what works on this machine and how fast (docs/gpu.md); it goes on where
# it was broken off. In the environment that is active: nothing is installed over the torch that vLLM chose.
# CHECK="--vllm PYTHON" where vLLM has an environment of its own.
gpu-check:
	$(PYTHON) -m scripts.gpu_check $(CHECK)

# About an hour on 2 idle cores: every figure of the papers with one base and three seeds, written to docs/results.
paper: $(VENV)/.installed
	$(BIN)/python -m reproduce

# Hours; the same command goes on where it stopped: both bases, more seeds, learning rates, questions beyond the papers.
paper-full: $(VENV)/.installed
	$(BIN)/python -m reproduce --full

# A minute: does uv (on PATH) still resolve pyproject's ranges to the versions of constraints-gpu.txt, and has the vLLM
# that it pins (340 MB, downloaded, not installed) every name that this package takes from it?
check-gpu-pins: $(VENV)/.installed
	uv pip compile --universal --python-version 3.11 --extra vllm --extra dev --constraint constraints-gpu.txt \
		--no-annotate --no-header --quiet pyproject.toml | diff - <(grep -v '^\#' constraints-gpu.txt)
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --dest $(VENV)/wheels \
		"$$(grep '^vllm==' constraints-gpu.txt | cut -d' ' -f1)"
	$(BIN)/python -m scripts.vllm_names $(VENV)/wheels/vllm-*.whl

# Half an hour: does the suite pass with the oldest versions that pyproject's ranges allow, as uv (on PATH) finds them?
# RESOLUTION=highest: with the newest; PYTHON=python3.13: in that Python. PyPI's torch brings CUDA, several GB; without:
# UV_TORCH_BACKEND=cpu. TRL is left out, as it asks for newer versions than this package does.
check-ranges: $(VENV)/.installed
	uv venv --quiet --clear --python $(PYTHON) $(RANGES)
	uv pip install --quiet --python $(RANGES) --resolution $(RESOLUTION) --editable '.[gguf,lora,tensorboard]'
	uv pip install --quiet --python $(RANGES) --constraint constraints.txt cogapp hypothesis pytest pytest-timeout pytest-xdist
	OMP_NUM_THREADS=1 $(RANGES)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Seconds: the site, into site/; a link that leads nowhere, a page outside the menu and two of one address are errors.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# mypy for macOS, too, where calls that only Linux has are errors.
lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11 to 3.13 is needed (3.11 is tested); this is {v[0]}.{v[1]}: set PYTHON=")'
	test -e $(VENV) || { mkdir -p $(VENV) && touch $(VENV)/.made; }  # by make: what `make clean` may remove
	$(PYTHON) -m venv $(VENV)
	@echo "installing topr_exp and the packages of constraints.txt into $(VENV): minutes; PyPI's torch brings CUDA, several GB"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

# Minutes, 2.4 GB: vLLM's CPU build in an environment of its own, for the tests marked vllm alone (docs/gpu.md).
# --no-deps: constraints-vllm.txt is the whole environment; its packages ask for CUDA builds that break vLLM here.
vllm: $(VLLM)/.installed

$(VLLM)/.installed: constraints-vllm.txt
	test -e $(VLLM) || { mkdir -p $(VLLM) && touch $(VLLM)/.made; }
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-vllm.txt
	touch $@

# What make made, and nothing else: environments that were there before stay, and so does all that runs wrote (outputs).
clean:
	@for each in $(VENV) $(VLLM); do \
		if test -e $$each/.made; then rm -rf $$each; \
		elif test -e $$each; then echo "kept $$each: it was there before make"; fi; \
	done
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis
