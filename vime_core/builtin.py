"""The core's own plugin: everything that vime-core brings is registered here, through the hooks that anybody uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from vime_core.hookspecs import hookimpl
from vime_core.interfaces.algorithm import Algorithm
from vime_core.interfaces.device import DeviceBackend
from vime_core.interfaces.rollout import RolloutGenerator
from vime_core.interfaces.weight_sync import Topology, WeightSync
from vime_core.registry import Registry


def cpu_present() -> tuple[bool, str]:
    return True, f"{os.cpu_count()} cores"


@hookimpl
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    registry.add(
        "cpu",
        "vime_core.devices.cpu.backend:CpuBackend",
        summary="the embedded device: gloo, shared memory, vLLM's CPU engine",
        priority=0,
        available=cpu_present,
    )


@hookimpl
def vime_register_weight_syncs(registry: Registry[type[WeightSync]]) -> None:
    registry.add(
        "shared_memory",
        "vime_core.weights.shared_memory:SharedMemorySync",
        summary="buckets in shared memory; trainer and engines on one machine",
    )
    registry.add("gloo", "vime_core.weights.gloo:GlooSync", summary="buckets over TCP by gloo; any number of machines")


@hookimpl(trylast=True)
def vime_choose_weight_sync(topology: Topology) -> str:
    return "shared_memory" if topology.nodes == 1 else "gloo"


@hookimpl
def vime_register_algorithms(registry: Registry[type[Algorithm]]) -> None:
    registry.add("grpo", "vime_core.algorithms.grpo:Grpo", summary="group relative policy optimization")
    registry.add("sft", "vime_core.algorithms.sft:Sft", summary="supervised cross entropy on the labels")


@hookimpl
def vime_register_rollouts(registry: Registry[type[RolloutGenerator]]) -> None:
    registry.add("generate", "vime_core.rollout.generate:Generate", summary="one answer a sample, from the engines")
    registry.add("sft", "vime_core.rollout.sft:SftRollout", summary="the label is the response; no engine")


@hookimpl
def vime_register_rewards(registry: Registry[Any]) -> None:
    registry.add(
        "math", "vime_core.rollout.rewards.math:MathReward", summary="final answers that are mathematically equal"
    )
    registry.add("exact", "vime_core.rollout.rewards.exact:score", summary="the answer is the label, to the character")
    registry.add(
        "reasoning_gym",
        "vime_core.rollout.rewards.reasoning_gym:ReasoningGymReward",
        summary="the scorer of the sample's reasoning-gym task",
    )


@hookimpl
def vime_register_filters(registry: Registry[Callable[..., Any]]) -> None:
    registry.add(
        "check_reward_nonzero_std",
        "vime_core.rollout.filters:check_reward_nonzero_std",
        summary="drops groups whose samples all got the same reward",
    )
