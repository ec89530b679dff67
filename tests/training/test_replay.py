"""Replayed experts are the ones that run, in every layout; the rest is the current weights'."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import build_model

ROOT = Path(__file__).parents[2]
LAYOUTS = {
    "tensor": ["--world", "2", "--tp", "2", "--sp"],
    "experts": ["--world", "2", "--ep", "2"],
    "tensor-experts": ["--world", "2", "--tp", "2", "--sp", "--ep", "2", "--etp", "1"],
    "pipeline": ["--world", "2", "--pp", "2"],
    "context": ["--world", "2", "--cp", "2"],
    "recompute": ["--recompute", "full"],
    "recompute-experts": ["--recompute", "selective"],
    "pipeline-recompute": ["--world", "2", "--pp", "2", "--recompute", "full"],
    "tensor-context": ["--world", "4", "--tp", "2", "--sp", "--cp", "2"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_model(tmp_path_factory.mktemp("models") / "moe", "qwen3_moe"))


def check(folder: str, *flags: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    script = str(Path(__file__).with_name("replay_run.py"))
    done = subprocess.run(
        [sys.executable, script, *flags, folder], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(found)
    assert found["own"] == found["own_diff"] == found["recorded"] == found["after"] == 0.0
    assert found["moved"] > 0.05
    assert found["forced"] <= 2e-6
    assert found["forced_train"] <= 2e-6
    assert found["kept"] <= 2e-6
    assert found["grad"] <= 5e-6
    assert found["gate"] > 1e-3
    assert 0.5 < found["forced_diff"] < 1.0
    assert 0.0 < found["kept_diff"] < 0.5


def test_one_rank(folder: str) -> None:
    check(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(folder: str, name: str) -> None:
    check(folder, *LAYOUTS[name])
