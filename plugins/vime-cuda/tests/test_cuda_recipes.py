"""Recipes for NVIDIA GPUs through the real resolver, the core's rules and the plugin's, with the models' own sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from vime_cuda.backend import CudaBackend
from vime_cuda.config import CudaOptions
from vime_cuda.flags import violations
from vime_cuda.versions import RELEASE, TRANSFORMER_ENGINE, numbers

from vime_core.config.facts import Facts
from vime_core.config.resolution import resolve
from vime_core.config.rules import violations as core_violations

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.cuda.toml"))


def sizes(layers: int, heads: int, groups: int, **more: int) -> dict[str, int]:
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups, **more}


#: what the models' config.json say, as far as the layout has to divide it
MODELS = {
    "Qwen2.5-0.5B": ("qwen2", sizes(24, 14, 2)),
    "Qwen3-4B": ("qwen3", sizes(36, 32, 8)),
    "Qwen3-8B": ("qwen3", sizes(36, 32, 8)),
    "Qwen3-32B": ("qwen3", sizes(64, 64, 8)),
    "Qwen3-30B-A3B": ("qwen3_moe", sizes(48, 32, 4, num_experts=128)),
    "Qwen3-235B-A22B": ("qwen3_moe", sizes(94, 64, 4, num_experts=128)),
    "Llama-3.1-8B": ("llama", sizes(32, 32, 8)),
    "MiMo-7B-RL": ("mimo", sizes(36, 32, 8)),
    "Moonlight-16B-A3B": ("deepseek_v3", sizes(27, 16, 16, n_routed_experts=64, kv_lora_rank=512)),
    "GLM-4.5-Air": ("glm4_moe", sizes(46, 96, 8, n_routed_experts=128)),
    "GLM-4-9B": ("glm4", sizes(40, 32, 2)),
    "Kimi-K2": ("kimi_k2", sizes(61, 64, 64, n_routed_experts=384, kv_lora_rank=512)),
    "DeepSeek-R1": ("deepseek_v3", sizes(61, 128, 128, n_routed_experts=256, kv_lora_rank=512)),
}


def flag(recipe: Path, what: str) -> list[str]:
    return re.findall(rf"^# {what}: (.*)$", recipe.read_text(), re.MULTILINE)


@pytest.fixture
def resolved(tmp_path: Path):
    def build(recipe: Path):
        kind, model = MODELS[flag(recipe, "Model")[0]]
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **model}))
        (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n' * 64)
        argv = [str(recipe), "--hf-checkpoint", str(tmp_path), "--prompt-data", str(tmp_path / "data.jsonl")]
        (stage,) = resolve(argv, {}, {"cuda": CudaOptions}).stages
        return stage.config.replace("cluster", device="cuda/cuda"), {"model_type": kind, **model}

    return build


def all_violations(config, model: dict) -> list[str]:
    from vime_core.training.models.families import FAMILIES, REFUSED_FAMILIES

    facts = Facts(
        model=model,
        model_types=frozenset(FAMILIES),
        refused_types=REFUSED_FAMILIES,
        supports_colocate=CudaBackend.supports_colocate,
        supports_sleep=CudaBackend.supports_sleep,
    )
    return [*core_violations(config, facts), *violations(config)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_as_far_as_it_says(recipe: Path, resolved) -> None:
    """Where nothing is in its way it breaks no rule; one that is blocked is refused."""
    config, model = resolved(recipe)
    found = all_violations(config, model)
    assert bool(flag(recipe, "Blocked")) == bool(found), found
    assert config.plugin_specs == ("cuda",)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_is_verified_and_what_is_not(recipe: Path, resolved) -> None:
    for what in ("Model", "GPUs", "Verified", "Not verified"):
        assert len(flag(recipe, what)) == 1, what
    config, _ = resolved(recipe)
    engines = 0 if config.cluster.colocate else config.num_engines * config.cluster.rollout_num_gpus_per_engine
    assert int(flag(recipe, "GPUs")[0].split()[0]) == config.trainer_ranks + engines
    assert config.cluster.colocate is ("-colocated" in recipe.name)


def test_the_page_calls_blocked_what_is_blocked() -> None:
    rows = [line for line in (ROOT / "docs/cuda.md").read_text().splitlines() if line.startswith("| `")]
    runs = next(row for row in rows if row.endswith("| resolve and keep every rule |"))
    refused = next(row for row in rows if "model type is refused" in row)
    for recipe in RECIPES:
        name = f"`{recipe.name.removesuffix('.cuda.toml')}`"
        assert name in (refused if flag(recipe, "Blocked") else runs), name


def test_there_is_one_for_each_model_and_none_without() -> None:
    models = [flag(recipe, "Model")[0] for recipe in RECIPES]
    assert set(models) == set(MODELS)
    assert models.count("Qwen3-4B") == 2


def test_the_image_and_the_constraints_are_of_the_set_that_is_checked_for() -> None:
    pinned = (ROOT / "constraints/cuda.txt").read_text()
    pins = dict(line.split("==") for line in pinned.splitlines() if "==" in line and not line.startswith("#"))
    assert {name: pins[name] for name in RELEASE} == dict(RELEASE)
    image = (ROOT / "docker/Dockerfile.cuda").read_text()
    assert "constraints/cuda.txt" in image
    (engine,) = re.findall(r"^ARG TRANSFORMER_ENGINE=(.*)$", image, re.MULTILINE)
    first, end = map(numbers, TRANSFORMER_ENGINE)
    assert first <= numbers(engine) < end
    assert f"=={engine}" in pinned
