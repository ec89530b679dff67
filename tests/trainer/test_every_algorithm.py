"""Every registered algorithm, with the framework's terms around it, in real processes: all layouts train the same."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.every_algorithm import names

ROOT = Path(__file__).parents[2]
RELATIVE = 2e-5
PACKED = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 64}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"train": PACKED},
    "tp2": {"train": PACKED, "megatron": {"tensor_model_parallel_size": 2}},
    "cp2": {"train": PACKED, "megatron": {"context_parallel_size": 2}},
    "unpacked": {"train": {"use_dynamic_batch_size": False, "micro_batch_size": 1}},
}

pytestmark = pytest.mark.slow


@lru_cache
def trained(folder: str, other: str, sections: str, world: int) -> dict[str, list[dict[str, float]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.every_algorithm", folder, other, sections, str(world)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, check=False, cwd=ROOT)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, list[dict[str, float]]] = json.loads(results[0].removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_trains_the_same(folders: dict[str, str], layout: str, name: str) -> None:
    world = 1 if layout == "unpacked" else 2
    one = trained(folders["policy"], folders["other"], json.dumps({"train": PACKED}), 1)[name]
    got = trained(folders["policy"], folders["other"], json.dumps(LAYOUTS[layout]), world)[name]
    for step, (ours, theirs) in enumerate(zip(got, one, strict=True)):
        compared = [key for key in theirs if key.startswith("train/") and key not in NOT_THE_SAME]
        assert "train/loss" in compared
        for key in compared:
            assert ours[key] == pytest.approx(theirs[key], rel=RELATIVE, abs=1e-6), (step, key)


#: of the packing itself
NOT_THE_SAME = {"train/micro_batches", "train/fill", "train/padding"}


@pytest.mark.parametrize("name", names())
def test_the_first_ratio_is_one_and_everything_is_finite(folders: dict[str, str], name: str) -> None:
    rows = trained(folders["policy"], folders["other"], json.dumps({"train": PACKED}), 1)[name]
    for row in rows:
        assert all(math.isfinite(value) for value in row.values())
        for key, exact in (("train/ppo_kl", 0.0), ("train/ois", 1.0)):
            assert row.get(key, exact) == exact
    assert rows[0]["train/grad_norm"] > 0
