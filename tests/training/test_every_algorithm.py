"""Every registered algorithm, with the framework's terms around it, in real processes: all layouts train the same."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

import pytest

from tests.support.every_algorithm import names
from tests.support.ranks import result_of

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
    module = "tests.support.every_algorithm"
    found: dict[str, list[dict[str, float]]] = result_of(module, folder, other, sections, str(world), seconds=560.0)
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
NOT_THE_SAME = {"train/micro_batches", "train/packing_efficiency", "train/padding"}


@pytest.mark.parametrize("name", names())
def test_the_first_ratio_is_one_and_everything_is_finite(folders: dict[str, str], name: str) -> None:
    rows = trained(folders["policy"], folders["other"], json.dumps({"train": PACKED}), 1)[name]
    for row in rows:
        assert all(math.isfinite(value) for value in row.values())
        for key, exact in (("train/ppo_kl", 0.0), ("train/ois", 1.0)):
            assert row.get(key, exact) == exact
    assert rows[0]["train/grad_norm"] > 0
