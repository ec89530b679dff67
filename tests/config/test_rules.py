"""Good runs break no rule, bad ones hear of everything at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vime_core.api.errors import ConfigError
from vime_core.config import rules
from vime_core.config.facts import Facts, read_model
from vime_core.config.resolution import resolve
from vime_core.config.rules import required, violations
from vime_core.config.sections import SECTIONS, Config

Make = Callable[..., Config]
EXTERNAL = "--rollout-external-engine-addrs h:1"
EVAL = "--eval-interval 1 --eval-prompt-data held {held}"
GRPO = Facts(group_based=True, algorithm_defaults={"eps_clip": 0.2, "eps_clip_high": None}, needs=frozenset({"reward"}))


KEEPS = [
    "",
    "--global-batch-size 8",
    "--num-steps-per-rollout 4",
    "--use-dynamic-batch-size --max-tokens-per-gpu 28 --context-parallel-size 2 --actor-num-gpus-per-node 2 "
    "--rollout-max-prompt-len 40",
    "--actor-num-gpus-per-node 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel",
    "--actor-num-gpus-per-node 3 --pipeline-model-parallel-size 3 --num-layers-in-first-pipeline-stage 2",
    "--rollout-num-gpus 8 --rollout-num-gpus-per-engine 8",
    EVAL,
    "--group-rm --eval-reward math " + EVAL,
    "--target=eval/held>=0.5 --stop-when=eval/held>0.9 " + EVAL,
    "--save {tmp}/new --load {tmp}/new --save-interval 1",
    "--prompt-data {tmp}/train.jsonl@[0:1] {{prepared.x}}",
    "--hf-checkpoint {{stages.sft.hf}} --reward {{x}}.py:f --load {{run}}",
    EXTERNAL,
    "--vllm-router-ip h --vllm-router-port 3",
    "--rollout-max-prompt-len 240",
    "--colocate",
    "--colocate --actor-num-gpus-per-node 4 --rollout-num-gpus-per-engine 2",
    "--colocate --offload-train --offload-rollout --rollout-sleep-level 2",
    "--colocate --no-offload-rollout --vllm-no-enable-sleep-mode",
    "--loss-type sft_loss --rollout-function sft --label-key l --n-samples-per-prompt 1 --rollout-top-p 0.5",
    "--eps-clip 0.1 --eps-clip-high 0.2",
    "--min-lr 1",
]


@pytest.mark.parametrize("flags", KEEPS)
def test_nothing_is_said_of_a_good_run(flags: str, config: Make, model: dict[str, Any], tmp_path: Path) -> None:
    made = config(*flags.format(tmp=tmp_path, held=f"{tmp_path}/held.jsonl").split())
    facts = dataclasses.replace(GRPO, model=model, supports_colocate=True, model_types=frozenset({"qwen3"}))
    assert violations(made, facts) == []
    assert violations(made) == []
    rules.check(made, facts)


def test_nothing_given() -> None:
    lines = violations(Config())
    for name in (
        "--hf-checkpoint",
        "--prompt-data",
        "--rollout-batch-size",
        "--num-rollout",
        "--rollout-max-response-len",
    ):
        assert any(name in line and "missing" in line for line in lines), name
    assert "--reward is missing: give a registered name, pkg.mod:function or file.py:function" in lines


def test_all_violations_come_together(config: Make, model: dict[str, Any]) -> None:
    flags = "--global-batch-size 12 --n-samples-per-prompt 1 --rollout-top-p 0.5 --save-interval 2 --sequence-parallel"
    with pytest.raises(ConfigError) as caught:
        rules.check(config(*flags.split()), dataclasses.replace(GRPO, model=model))
    assert len(caught.value.violations) == 5
    assert caught.value.exit_code == 2


def test_violations_name_the_layer(valid: list[str], recipe: Callable[[str], str]) -> None:
    path = recipe("global_batch_size = 12\n")
    made = resolve([path, *valid], {"VIME_NUM_STEPS_PER_ROLLOUT": "5"}).stages[0].config
    text = "\n".join(violations(made))
    assert "--global-batch-size 12 (recipe recipe.toml)" in text
    assert "--num-steps-per-rollout 5 (environment VIME_NUM_STEPS_PER_ROLLOUT)" in text
    assert "--rollout-batch-size 4 (flag --rollout-batch-size)" in text


def test_ranges_name_real_fields() -> None:
    fields = {name for kind in SECTIONS.values() for name in (f.name for f in dataclasses.fields(kind))}
    assert {*required.AT_LEAST_ONE, *required.AT_LEAST_ZERO, *required.ABOVE_ZERO} <= fields


def test_no_rule_stumbles_over_zeros_and_negatives(config: Make, model: dict[str, Any]) -> None:
    """Nonsense is reported, never a ZeroDivisionError."""
    for name in required.AT_LEAST_ONE:
        for value in ("0", "-1"):
            made = config(f"--{name.replace('_', '-')}={value}", "--use-dynamic-batch-size")
            assert any(
                line.startswith(f"--{name.replace('_', '-')} {value} ") for line in violations(made, Facts(model=model))
            )


def test_read_model(tmp_path: Path) -> None:
    assert read_model(None) is None
    assert read_model(str(tmp_path)) is None
    file = tmp_path / "config.json"
    file.write_text('{"num_local_experts": 4, "num_experts": null}')
    assert Facts(model=read_model(str(tmp_path))).experts == 4
    for text in ("{", "[]"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="--hf-checkpoint names a Hugging Face folder"):
            read_model(str(tmp_path))
