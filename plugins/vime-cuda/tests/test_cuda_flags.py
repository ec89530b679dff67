"""Each rule says no to what it is about, and yes to the defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vime_cuda.config import CudaOptions
from vime_cuda.flags import violations

from vime_core import Config
from vime_core.api.errors import ConfigError

PLAIN = CudaOptions(trainer="plain")


def config(options: CudaOptions | None = None, vllm: Any = None, megatron: Any = None, **cluster: Any) -> Config:
    made = Config(vllm=vllm or {}, megatron_extra=megatron or {}, plugins={"cuda": options or CudaOptions()})
    return made.replace("cluster", device="cuda/cuda", **cluster)


def synced(name: str, **cluster: Any) -> Config:
    return config(**cluster).replace("sync", weight_sync=name)


def test_the_defaults_are_allowed() -> None:
    for options in (CudaOptions(), CudaOptions(trainer="te"), PLAIN):
        assert violations(config(options)) == []
    assert violations(config(colocate=True)) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (config(PLAIN, megatron={"fp8": "hybrid"}), "--fp8 hybrid (default): it is Transformer Engine's"),
        (config(PLAIN, megatron={"gradient_accumulation_fusion": True}), "--gradient-accumulation-fusion True"),
        (config(PLAIN, megatron={"tp_comm_overlap": True}), "--tp-comm-overlap True (default): Transformer Engine's"),
        (synced("nccl", colocate=True), "--weight-sync nccl: NCCL refuses two ranks on one device"),
        (synced("cuda/nccl", colocate=True), "--weight-sync nccl: NCCL refuses two ranks on one device"),
        (synced("cuda/cuda_ipc"), "--weight-sync cuda_ipc: trainer and engines share no device"),
        (
            config(colocate=True, rollout_num_gpus=2, actor_num_gpus_per_node=4),
            "--colocate with engines on 2 of the trainer's 4 devices: by cuda_ipc",
        ),
        (config(vllm={"distributed_executor_backend": "ray"}), "--vllm-distributed-executor-backend ray"),
    ],
    ids=lambda value: value.split(":")[0][:40] if isinstance(value, str) else "",
)
def test_each_rule_has_a_reason(given: Config, says: str) -> None:
    (line,) = violations(given)
    assert line.startswith(says)


def test_what_is_fine_beside_the_right_option() -> None:
    te = CudaOptions(trainer="te")
    assert violations(config(te, megatron={"fp8": "hybrid", "gradient_accumulation_fusion": True})) == []
    assert violations(config(colocate=True, rollout_num_gpus=4, actor_num_gpus_per_node=4)) == []
    few = synced("shared_memory", colocate=True, rollout_num_gpus=2, actor_num_gpus_per_node=4)
    assert violations(few) == []
    assert violations(synced("nccl")) == violations(synced("cuda_ipc", colocate=True)) == []


def test_latent_attention_needs_transformer_engine(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deepseek_v3", "kv_lora_rank": 512}))
    given = config(PLAIN).replace("model", hf_checkpoint=str(tmp_path))
    assert violations(given)[0].startswith("--cuda-trainer plain: deepseek_v3 has multi-latent attention")
    assert violations(given.replace("model", hf_checkpoint="").replace("cluster", colocate=False)) == []


def test_all_are_reported_together_and_only_for_runs_on_cuda(vime_plugins) -> None:
    plugins = vime_plugins("cuda")
    bad = config(PLAIN, megatron={"fp8": "hybrid"}, vllm={"distributed_executor_backend": "ray"})
    with pytest.raises(ConfigError) as caught:
        plugins.configure(bad)
    assert len(caught.value.violations) == 2
    assert all(line.startswith("plugin 'cuda' (vime-cuda 0.1.0): --") for line in caught.value.violations)
    plugins.configure(bad.replace("cluster", device="core/cpu"))
