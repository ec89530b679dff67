"""Each rule says no to what it is about, and yes to the defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vime_ascend.config import AscendOptions
from vime_ascend.flags import violations

from vime_core import Config
from vime_core.api.errors import ConfigError


def config(options: AscendOptions | None = None, vllm: Any = None, megatron: Any = None, **cluster: Any) -> Config:
    made = Config(vllm=vllm or {}, megatron_extra=megatron or {}, plugins={"ascend": options or AscendOptions()})
    return made.replace("cluster", device="ascend/ascend", **cluster)


def test_the_defaults_are_allowed() -> None:
    assert violations(config()) == []
    assert violations(config(AscendOptions(trainer="mindspeed"))) == []
    assert violations(config(colocate=True, vllm={"enforce_eager": True})) == []


MINDSPEED = AscendOptions(trainer="mindspeed")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            config(megatron={"gradient_accumulation_fusion": True}),
            "--gradient-accumulation-fusion True (default): no NPU",
        ),
        (config(MINDSPEED, megatron={"tp_comm_overlap": True}), "--tp-comm-overlap True (default): no NPU"),
        (config(megatron={"fp8": "hybrid"}), "--fp8 hybrid (default): no NPU"),
        (config(megatron={"apply_rope_fusion": True}), "--apply-rope-fusion True (default): a fused CUDA kernel"),
        (
            config(AscendOptions(mindspeed={"sparse_mode": 2})),
            "--ascend-mindspeed ['sparse_mode']: MindSpeed is not used",
        ),
        (config(AscendOptions("mindspeed", {"use_flash_attn": False})), "--ascend-mindspeed use_flash_attn=false"),
        (config(AscendOptions("mindspeed", {"sparse_mode": 4})), "--ascend-mindspeed sparse_mode=4: only 0"),
        (config(MINDSPEED, megatron={"virtual_pipeline_model_parallel_size": 2}), "--virtual-pipeline-model-parallel"),
        (config(megatron={"async_save": True}), "--async-save True (default): writing in a forked process"),
        (config(vllm={"additional_config": {"weight_nz_mode": 1}}), "--vllm-additional-config weight_nz_mode=1"),
        (config(vllm={"enforce_eager": False}), "--no-vllm-enforce-eager: a captured ACL graph"),
        (
            config(AscendOptions(chip="a2"), actor_num_gpus_per_node=16),
            "--actor-num-gpus-per-node 16: a machine with A2",
        ),
        (
            config(AscendOptions(chip="a2"), rollout_num_gpus_per_engine=16),
            "--rollout-num-gpus-per-engine 16: an engine",
        ),
        (config(AscendOptions(hccl_ports="5")), "--ascend-hccl-ports 5: write FIRST-LAST"),
        (
            config(colocate=True, rollout_num_gpus=2, actor_num_gpus_per_node=4),
            "--colocate with engines on 2 of the trainer's 4 NPUs: by npu_ipc",
        ),
    ],
    ids=lambda value: value.split(":")[0][:40] if isinstance(value, str) else "",
)
def test_each_rule_has_a_reason(given: Config, says: str) -> None:
    (line,) = violations(given)
    assert line.startswith(says)


def test_what_is_fine_beside_the_right_option() -> None:
    few = config(colocate=True, rollout_num_gpus=2, actor_num_gpus_per_node=4)
    assert violations(few.replace("sync", weight_sync="shared_memory")) == []
    assert violations(config(AscendOptions(graphs=True), vllm={"enforce_eager": False})) == []
    assert violations(config(AscendOptions(chip="a3"), actor_num_gpus_per_node=16)) == []
    assert violations(config(AscendOptions(chip="a5"), actor_num_gpus_per_node=64)) == []
    assert (
        violations(config(AscendOptions("mindspeed", {"sparse_mode": 2}), megatron={"apply_rope_fusion": True})) == []
    )


def test_models_whose_kernels_no_release_has_are_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe"}))
    given = config().replace("model", hf_checkpoint=str(tmp_path))
    assert "gated delta layers" in violations(given)[0]


def test_all_are_reported_together_and_only_for_runs_on_npus(vime_plugins) -> None:
    plugins = vime_plugins("ascend")
    bad = config(AscendOptions(hccl_ports="5"), megatron={"fp8": "hybrid", "async_save": True})
    with pytest.raises(ConfigError) as caught:
        plugins.configure(bad)
    assert len(caught.value.violations) == 3
    assert all(line.startswith("plugin 'ascend' (vime-ascend 0.1.0): --") for line in caught.value.violations)
    plugins.configure(bad.replace("cluster", device="core/cpu"))
