from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vime_cli.plan.calibration import Calibration
from vime_cli.plan.findings import findings
from vime_cli.plan.machine import HOST_COSTS, Machine
from vime_cli.plan.needs import Needs
from vime_cli.plan.phases import PHASES, holdings, trainer_parts
from vime_cli.plan.report import Report
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.stage_plan import PlanInputs, StagePlan, plan_stage
from vime_cli.units import GIB

from tests.plan.shapes import SHAPES
from vime_core.config.sections import Config

NOTHING = Needs()
MACHINE = Machine("other", 8 * GIB, "given", shared=False, per_node=8)


def _config(**sections: dict[str, Any]) -> Config:
    config = Config().replace("rollout", rollout_batch_size=8, n_samples_per_prompt=8, rollout_max_response_len=96)
    config = config.replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=1024)
    config = config.replace("data", rollout_max_prompt_len=32)
    for section, values in sections.items():
        config = config.replace(section, **values)
    return config


def _plan(config: Config | None = None, needs: Needs = NOTHING, machine: Machine = MACHINE, **more: Any) -> StagePlan:
    shape = ModelShape.of({**SHAPES["qwen3"], **more})
    return plan_stage(PlanInputs(config or _config(), shape, needs, machine, {"kv_cache_memory_bytes": 1 << 20}))


def _train(plan: StagePlan) -> int:
    return sum(part.bytes for part in trainer_parts(plan, plan.placement.ranks[0], "train"))


def _stays(plan: StagePlan) -> dict[str, int]:
    return {part.name: part.bytes for part in plan.trainers[0].stays}


def test_adam_holds_sixteen_bytes_a_parameter_and_eighteen_in_bfloat16() -> None:
    for bf16, each in ((False, 16), (True, 18)):
        plan = _plan(_config(megatron={"bf16": bf16}))
        assert sum(_stays(plan).values()) == each * plan.parameters[0].total


def test_the_distributed_optimizer_is_cut_over_the_replicas() -> None:
    cluster = {"actor_num_gpus_per_node": 4}
    whole = _plan(_config(cluster=cluster))
    cut = _plan(_config(cluster=cluster, megatron={"use_distributed_optimizer": True}))
    total = whole.parameters[0].total
    assert _stays(whole)["policy: optimizer state"] == 8 * total
    assert _stays(cut)["policy: optimizer state, cut over 4 ranks"] == 8 * total // 4


def test_more_of_anything_is_more_memory() -> None:
    before = _train(_plan())
    assert _train(_plan(_config(train={"max_tokens_per_gpu": 2048}))) > before
    assert _train(_plan(num_hidden_layers=5)) > before
    assert _train(_plan(vocab_size=200)) > before
    assert _train(_plan(needs=Needs(critic=True))) > before
    assert _train(_plan(needs=Needs(reference=True))) == before + 2 * 4 * _plan().parameters[0].total


def test_less_of_anything_is_less_memory() -> None:
    before = _train(_plan())
    assert _train(_plan(_config(megatron={"recompute_granularity": "full"}))) < before
    assert _train(_plan(_config(train={"log_probs_chunk_size": 16}))) <= before
    two = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    assert _train(_plan(_config(cluster={"actor_num_gpus_per_node": 2}, megatron=two))) < before / 1.8


def test_a_smaller_pass_without_gradient_takes_less() -> None:
    needs = Needs(reference=True)

    def passing(**train: Any) -> int:
        return _plan(_config(train=train), needs).trainers[0].passing["log_probs"].total

    assert passing(log_probs_max_tokens_per_gpu=256) < passing() < passing(log_probs_max_tokens_per_gpu=4096)


def test_large_tensors_are_told_from_the_heap() -> None:
    config = _config(train={"max_tokens_per_gpu": 1024, "log_probs_chunk_size": 256})
    small, large = (_plan(config, vocab_size=size).trainers[0].passing["train"] for size in (32_000, 40_000))
    assert small.mapped == 0  # logits of 256 tokens in float32: 31 MiB
    assert large.mapped == 2 * 4 * 256 * 40_000
    assert large.heap < small.heap
    assert large.total > small.total


def test_the_heap_keeps_what_training_took_of_it() -> None:
    plan = _plan(machine=replace(MACHINE, shared=True))
    passing = plan.trainers[0].passing["train"]
    rank = plan.placement.ranks[0]
    kept = {
        phase: next(p.bytes for p in trainer_parts(plan, rank, phase) if p.name.startswith("activations"))
        for phase in PHASES
    }
    assert kept["train"] == pytest.approx(HOST_COSTS.peak * passing.heap, abs=1)
    assert kept["rollout"] == pytest.approx(HOST_COSTS.kept * passing.heap, abs=1)


def test_early_pipeline_stages_hold_more_micro_batches() -> None:
    config = _config(cluster={"actor_num_gpus_per_node": 2}, megatron={"pipeline_model_parallel_size": 2})
    first, last = _plan(config, vocab_size=8).trainers
    assert first.passing["train"].total > 1.5 * last.passing["train"].total


def test_a_shared_machine_holds_all_processes_in_one_sum() -> None:
    machine = replace(MACHINE, shared=True)
    plan = _plan(_config(cluster={"rollout_num_gpus": 2}), machine=machine)
    found = holdings(plan)
    assert [one.phase for one in found] == list(PHASES)
    parts = {part.name: part.bytes for part in found[0].parts}
    assert parts["engine: process (x 2)"] == 2 * HOST_COSTS.engine
    assert parts["trainer: process"] == HOST_COSTS.trainer


def test_colocated_memory_is_the_sum_until_engines_sleep() -> None:
    def train(**cluster: Any) -> int:
        plan = _plan(_config(cluster={"colocate": True, **cluster}))
        return next(one.total for one in holdings(plan) if one.phase == "train")

    apart = _plan(_config())
    engine = apart.engine
    assert engine is not None
    both = train(offload_rollout=False, offload_train=False)
    assert both == _train(apart) - 2 * 4 * apart.parameters[0].total + engine.weights + (1 << 20) + engine.logits
    assert train(offload_rollout=True, offload_train=True) < both


def test_what_breaks_first_is_named_with_flags_that_mend_it() -> None:
    plan = _plan()
    need = max(one.total for one in holdings(plan))
    tight = _plan(machine=replace(MACHINE, memory=need - need // 8))
    found = [finding for finding in findings(tight, _facts()) if finding.breaks]
    assert found[0].phase == "rollout"  # the allocator keeps what training took
    assert found[0].need == need
    assert any(fix.startswith("--max-tokens-per-gpu 512") and fix.endswith("fits") for fix in found[0].fixes)
    assert not any(finding.breaks for finding in findings(plan, _facts()))


def test_a_fix_is_never_shorter_than_the_longest_sample() -> None:
    tight = _plan(_config(train={"max_tokens_per_gpu": 130}), machine=replace(MACHINE, memory=1 << 20))
    for finding in findings(tight, _facts()):
        assert not any("--max-tokens-per-gpu 6" in fix for fix in finding.fixes)


def test_a_cache_without_room_for_one_sample_breaks() -> None:
    inputs = replace(_plan().inputs, arguments={"kv_cache_memory_bytes": 1000})
    found = findings(plan_stage(inputs), _facts())
    assert found[0].breaks
    assert found[0].unit == "tokens"
    assert "cache" in found[0].what


def test_a_step_is_never_timed_without_a_measurement() -> None:
    plan = _plan()
    assert Report.of("main", plan, [], None).timing is None
    speeds = [Calibration(flops, 1e9, "float32", 1) for flops in (1e9, 2e9)]
    slow, fast = (Report.of("main", plan, [], speed).timing for speed in speeds)
    assert slow is not None
    assert fast is not None
    assert slow.phases["train"] == pytest.approx(2 * fast.phases["train"])
    assert "measured here" in slow.built_from


def _facts() -> Any:
    from vime_core.config.facts import Facts

    return Facts(model=SHAPES["qwen3"])
