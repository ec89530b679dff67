"""Recipes for NPUs through the real resolver, the core's rules and the plugin's, with the models' own sizes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from vime_ascend.backend import AscendBackend
from vime_ascend.chips import CHIPS, chip_named
from vime_ascend.config import AscendOptions
from vime_ascend.flags import violations
from vime_ascend.versions import RELEASES

from vime_core.config.facts import Facts
from vime_core.config.resolution import resolve
from vime_core.config.rules import violations as core_violations

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.ascend-*.toml"))

#: what the models' config.json say, as far as the layout has to divide it
MODELS = {
    "Qwen3-4B": ("qwen3", {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Qwen3-8B": ("qwen3", {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Qwen3-32B": ("qwen3", {"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8}),
    "Qwen3-30B-A3B": (
        "qwen3_moe",
        {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128},
    ),
    "Qwen3-VL-30B-A3B": ("qwen3_vl_moe", {}),
    "Qwen3.5-27B": ("qwen3_5", {}),
    "Qwen3.5-35B-A3B": ("qwen3_5_moe", {}),
    "MiniMax-M2.5": ("minimax_m2", {}),
    "GLM-4.7-Flash": ("glm4_moe_lite", {}),
}


def flag(recipe: Path, what: str) -> list[str]:
    return re.findall(rf"^# {what}: (.*)$", recipe.read_text(), re.MULTILINE)


@pytest.fixture
def resolved(tmp_path: Path):
    def build(recipe: Path):
        kind, sizes = MODELS[flag(recipe, "Model")[0]]
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
        (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "label": "2"}\n' * 64)
        argv = [str(recipe), "--hf-checkpoint", str(tmp_path), "--prompt-data", str(tmp_path / "data.jsonl")]
        (stage,) = resolve(argv, {}, {"ascend": AscendOptions}).stages
        return stage.config.replace("cluster", device="ascend/ascend"), {"model_type": kind, **sizes}

    return build


def all_violations(config, model: dict) -> list[str]:
    from vime_core.training.models.families import FAMILIES, REFUSED_FAMILIES

    facts = Facts(
        model=model,
        model_types=frozenset(FAMILIES),
        refused_types=REFUSED_FAMILIES,
        supports_colocate=AscendBackend.supports_colocate,
    )
    return [*core_violations(config, facts), *violations(config)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_as_far_as_it_says(recipe: Path, resolved) -> None:
    """Where nothing is in its way it breaks no rule; one that is blocked is refused, or needs an unreleased set."""
    config, model = resolved(recipe)
    found, blocked = all_violations(config, model), flag(recipe, "Blocked")
    unreleased = chip_named(flag(recipe, "Chip")[0]).experimental
    assert bool(blocked) == (bool(found) or unreleased), found
    assert config.plugins["ascend"].chip == flag(recipe, "Chip")[0].lower()
    assert config.plugin_specs == ("ascend",)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_is_verified_and_what_is_not(recipe: Path) -> None:
    for what in ("Model", "Chip", "Verified", "Not verified"):
        assert len(flag(recipe, what)) == 1, what
    assert flag(recipe, "Chip")[0].lower() == recipe.stem.rpartition("-")[2]


def test_there_is_one_for_each_model_and_none_without() -> None:
    models = [flag(recipe, "Model")[0] for recipe in RECIPES]
    assert set(models) == set(MODELS)
    assert models.count("Qwen3-4B") == 2


def test_refused_models_are_refused_for_the_reason_that_is_given(resolved) -> None:
    recipe = ROOT / "recipes/qwen3.5-35b-a3b.ascend-a3.toml"
    lines = "\n".join(all_violations(*resolved(recipe)))
    assert "qwen3_5_moe" in lines
    assert "gated delta layers" in lines


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_the_image_and_the_constraints_are_of_the_released_set(chip) -> None:
    text = (ROOT / "docker/Dockerfile.npu").read_text()
    release = next(release for release in RELEASES if chip.name in release.chips)
    assert f"ARG CANN={release.cann}" in text
    assert chip.image in text
    assert chip.soc in text
    pinned = (ROOT / f"constraints/ascend-{chip.name.lower()}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in pinned if "==" in line and not line.startswith("#"))
    for name, version in release.packages.items():
        assert pins[name].startswith(version), name
    assert ("Experimental" in "\n".join(pinned)) is chip.experimental
