from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vime_cli.main import main
from vime_cli.plan.needs import Needs, needs_of

from tests.plan.shapes import SHAPES
from vime_core.plugin.plugins import Plugins

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
#: divides by the parallel sizes of every shipped recipe
_LARGE = {"num_attention_heads": 64, "num_key_value_heads": 16, "head_dim": 8, "max_position_embeddings": 40960}
MODELS = {
    "dense": {**SHAPES["qwen3"], **_LARGE},
    "experts": {**SHAPES["qwen3_moe"], **_LARGE, "num_experts": 64},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS["dense"]))
    return file


def _flags(file: Path, *more: str) -> list[str]:
    sizes = ["--rollout-batch-size", "8", "--num-rollout", "1", "--rollout-max-response-len", "64", "--reward", "exact"]
    batches = ["--use-dynamic-batch-size", "--max-tokens-per-gpu", "2048", "--rollout-max-prompt-len", "64"]
    groups = ["--n-samples-per-prompt", "8", "--device", "cpu"]
    return ["plan", "--model-config", str(file), *sizes, *batches, *groups, *more]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_planned(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = "experts" if "expert_model_parallel_size" in recipe.read_text() else "dense"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS[kind]))
    code = main(["plan", str(recipe), "--model-config", str(file), "--memory-gib", "64"])
    said = capsys.readouterr()
    if "--colocate" in said.err:  # refused by this device, as vime train would
        assert code == 2
        return
    assert code == 0, said.err
    assert "fits (64.00 GiB: --memory-gib)" in said.out


def test_a_run_that_cannot_fit_ends_with_1_and_says_what_breaks(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_flags(model, "--memory-gib", "1")) == 1
    said = capsys.readouterr().out
    assert "breaks first: rollout: node 0 is too small" in said
    assert "--vllm-kv-cache-memory-bytes" in said


def test_json_has_every_number(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_flags(model, "--json", "--memory-gib", "100")) == 0
    (stage,) = json.loads(capsys.readouterr().out)
    assert stage["fits"] is True
    assert stage["provenance"]["max_tokens_per_gpu"] == "flag --max-tokens-per-gpu"
    assert stage["packing"]["bound"] == 2048
    assert {holding["phase"] for holding in stage["memory"]} == {"rollout", "log_probs", "train", "sync"}
    assert stage["sync"]["payload"] == 4 * stage["parameters"][0]["total"]


def test_without_a_model_it_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "recipes" / "quickstart.toml")]) == 2
    assert "--model-config FILE" in capsys.readouterr().err


def test_an_unknown_memory_gives_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS["dense"]))
    absent = next(path for path in RECIPES if path.name == "qwen3-32b.ascend-a3.toml")
    assert main(["plan", str(absent), "--model-config", str(file)]) == 2
    said = capsys.readouterr()
    assert "memory by phase" in said.out
    assert "give --memory-gib" in said.err


def test_broken_rules_are_reported_together(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_flags(model, "--tensor-model-parallel-size", "3", "--global-batch-size", "7")) == 2
    said = capsys.readouterr().err
    assert "--tensor-model-parallel-size 3" in said
    assert "--global-batch-size 7" in said


def test_a_plan_imports_nothing_heavy(model: Path) -> None:
    code = (
        "import sys; from vime_cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'vllm', 'ray', 'transformers', 'megatron', 'mbridge', 'pydantic', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, *_flags(model, "--use-kl-loss", "--advantage-estimator", "ppo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
    assert "beside the policy: reference, critic" in done.stdout


@pytest.mark.slow
def test_a_measured_machine_gives_a_steps_time_and_says_what_it_is_built_from(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_flags(model, "--calibrate", "--memory-gib", "100")) == 0
    said = capsys.readouterr().out
    part = said.partition("time of a step:")[2].partition("verdict:")[0]
    assert re.findall(r"^  (\w+) +[\d.e-]+ s$", part, re.MULTILINE) == ["rollout", "log_probs", "train", "sync"]
    assert re.search(r"from [\d,]+ GFLOP/s of float32 products with 1 threads and [\d.,]+ GB/s of copies", part)
    assert "measured here" in part
    assert "a lower bound" in part


@pytest.mark.parametrize("name", [provider.name for provider in Plugins.load(autoload=False).algorithms])
def test_needs_read_from_the_source_are_the_algorithms_own(name: str) -> None:
    from vime_cli.plan.needs import facts_of

    from vime_core.config.sections import Config

    plugins = Plugins.load(autoload=False)
    algorithm: Any = plugins.algorithms.get(name).load()
    read = facts_of(plugins.algorithms.get(name).target_text)
    assert frozenset(read["needs"]) == algorithm.needs
    assert read["recompute_old_logprobs"] == algorithm.recompute_old_logprobs
    config = Config().replace("algorithm", advantage_estimator=name)
    found = needs_of(config.replace("rollout", rollout_batch_size=8), plugins)
    assert isinstance(found, Needs)
    assert found.critic == ("values" in algorithm.needs)
