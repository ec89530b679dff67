"""The core's own plugin: everything that vime-core brings is registered here, through the hooks that anybody uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vime_core.api import Algorithm, DeviceBackend, RolloutGenerator, Topology, WeightSync
from vime_core.hookspecs import hookimpl
from vime_core.plugin import Registry

if TYPE_CHECKING:
    from vime_core.algorithms import CorrectionFunction


def cpu_present() -> tuple[bool, str]:
    return True, f"{os.cpu_count()} cores"


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "cpu",
        "vime_core.devices.cpu:CpuBackend",
        summary="the embedded device: gloo, shared memory, vLLM's CPU engine",
        priority=0,
        available=cpu_present,
    )


@hookimpl
def vime_register_weight_syncs(registry: Registry[type[WeightSync]]) -> None:
    registry.add(
        "shared_memory",
        "vime_core.weights.transports.shared_memory:SharedMemorySync",
        summary="buckets in shared memory; trainer and engines on one machine",
    )
    registry.add(
        "gloo", "vime_core.weights.transports.gloo:GlooSync", summary="buckets over TCP by gloo; any number of machines"
    )


@hookimpl(trylast=True)
def vime_choose_weight_sync(topology: Topology) -> str:
    return "shared_memory" if topology.nodes == 1 else "gloo"


@hookimpl
def vime_register_algorithms(registry: Registry[type[Algorithm]]) -> None:
    for name, target, summary in (
        ("grpo", "grpo:Grpo", "group relative policy optimization"),
        ("dr_grpo", "grpo:DrGrpo", "GRPO without the divisions by standard deviation and length"),
        ("dapo", "grpo:Dapo", "GRPO with a wider clip above and a token mean"),
        ("gspo", "gspo:Gspo", "GRPO with one ratio a sequence"),
        ("gmpo", "gspo:Gmpo", "GRPO with the geometric mean of clipped ratios"),
        ("cispo", "cispo:Cispo", "policy gradient with a clipped, detached importance weight"),
        ("sapo", "sapo:Sapo", "GRPO with a soft gate instead of the clip"),
        ("dppo", "dppo:Dppo", "GRPO with a trust region in probability, against the sampler"),
        ("rloo", "baselines:Rloo", "the baseline is the mean of the group's other tries"),
        ("opo", "baselines:Opo", "the baseline is the group's mean, weighted by length"),
        ("maxrl", "baselines:MaxRl", "GRPO divided by the group's mean reward, so that rare successes count more"),
        ("reinforce", "reinforce:Reinforce", "plain policy gradient on returns"),
        ("reinforce_plus_plus", "reinforce:ReinforcePlusPlus", "returns whitened over the step, no critic"),
        (
            "reinforce_plus_plus_baseline",
            "reinforce:ReinforcePlusPlusBaseline",
            "rewards less the group's mean, whitened over the step",
        ),
        ("ppo", "ppo:Ppo", "proximal policy optimization with a critic"),
        ("opd", "opd:Opd", "on-policy distillation from a teacher, without a reward"),
        ("sft", "sft:Sft", "supervised cross entropy on the labels"),
    ):
        registry.add(name, f"vime_core.algorithms.{target}", summary=summary)


@hookimpl
def vime_register_rollouts(registry: Registry[type[RolloutGenerator]]) -> None:
    registry.add("generate", "vime_core.rollout.generate:Generate", summary="one answer a sample, from the engines")
    registry.add("sft", "vime_core.rollout.sft:SftRollout", summary="the label is the response; no engine")


@hookimpl
def vime_register_rewards(registry: Registry[Any]) -> None:
    registry.add(
        "math", "vime_core.rollout.rewards.math:MathReward", summary="final answers that are mathematically equal"
    )
    registry.add(
        "exact",
        "vime_core.rollout.rewards.exact:score",
        summary="the answer is the label, to the letter",
    )
    registry.add(
        "reasoning_gym",
        "vime_core.rollout.rewards.reasoning_gym:ReasoningGymReward",
        summary="the scorer of the sample's reasoning-gym task",
    )


@hookimpl
def vime_register_corrections(registry: Registry[CorrectionFunction]) -> None:
    for target, summary in (
        ("tis", "truncated importance sampling against the sampler: bounds the weight of a token"),
        ("icepop", "importance weights within bounds; tokens outside them are rejected"),
        ("Mis", "importance weights of tokens or sequences: truncated, clipped or masked, with rejection and veto"),
        ("opsm", "drops sequences of negative advantage that drifted away from the sampler"),
    ):
        registry.add(target.lower(), f"vime_core.algorithms.importance:{target}", summary=summary)


@hookimpl
def vime_register_filters(registry: Registry[Callable[..., Any]]) -> None:
    registry.add(
        "check_reward_nonzero_std",
        "vime_core.rollout.filters:check_reward_nonzero_std",
        summary="drops groups whose samples all got the same reward",
    )
