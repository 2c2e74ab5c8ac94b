# `make demo` and `make test` set up all they need on a fresh machine. pip's own configuration is respected;
# PIP_ARGS is passed to every pip install, e.g. PIP_ARGS="-c constraints.txt".

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
DEMO_PROMPTS ?= 6
ENGINE ?= vllm
TEST_WORKERS ?= auto
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A worker for each core, up to four; each keeps to one thread, because threads of several workers on one core slow each
# other several-fold. What reads the same module fixture stays mostly with one worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --maxprocesses 4 --dist worksteal

.PHONY: demo test test-fast test-servers lint types bench clean

demo: $(READY)
	$(BIN)/python -m dflash.benchmark --backend transformers --dataset quickstart \
		--num-prompts $(DEMO_PROMPTS) --max-new-tokens 64 --block-size 2,3,4,8

test: $(READY)
	$(PYTEST)

test-fast: $(READY)
	$(PYTEST) -m "not slow and not real_model"

# The real vLLM or SGLang (ENGINE=sglang), in an environment outside the checkout that is made at the first run.
test-servers: $(READY)
	DFLASH_TEST_ENGINE=$(ENGINE) $(BIN)/python -m pytest -m servers tests/integration

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/few_row_products.py
	$(BIN)/python benchmarks/mlx_overhead.py

# torch first and alone: a build that is at hand is then kept by everything after it.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_ARGS) "torch>=2.9"
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[dev]"
	$(BIN)/python -m pip install $(PIP_ARGS) -e ".[mlx]" || echo "MLX cannot be installed here: its tests are left out"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
