"""A tiny task (two-digit addition and its Qwen3), and the options of a GRPO run on it that takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vime_cli.quickstart.addition import prepare

REWARD = """def score(sample):
    return sum(token % 2 for token in sample.response_tokens) / 8
"""


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """``model``, ``train`` and ``heldout``, as the quickstart prepares them; the model knows nothing yet."""
    return prepare(tmp_path_factory.mktemp("task"), 7)


@pytest.fixture
def grpo(task: dict[str, str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``grpo(lr=1)``: options of a GRPO run of two steps, 4 prompts x 4 samples, by field; others replace them."""
    (tmp_path / "my_reward.py").write_text(REWARD)
    options = {
        "run_dir": "run",
        "hf_checkpoint": task["model"],
        "prompt_data": task["train"],
        "input_key": "prompt",
        "label_key": "answer",
        "rollout_shuffle": True,
        "reward": "my_reward.py:score",
        "rollout_max_response_len": 6,
        "rollout_batch_size": 4,
        "n_samples_per_prompt": 4,
        "num_rollout": 2,
        "rollout_seeded": True,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 1024,
        "lr": 1e-3,
        "use_tensorboard": False,
        "vllm_dtype": "float32",
        "vllm_max_model_len": 64,
        "vllm_max_num_seqs": 64,
    }
    return lambda **changes: options | changes
