"""Trainer and engines on the same devices: whether they can be, and what only then means something."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag, given
from vime_core.config.sections import Config

_OPTIONS = ("offload_train", "offload_rollout", "rollout_sleep_level")


def shareable(config: Config, facts: Facts) -> str | None:
    if config.cluster.colocate and facts.supports_colocate is False:
        return f"{flag(config, 'colocate')}: {flag(config, 'device')} cannot be shared; use --no-colocate"
    return None


def nobody_to_make_room_for(config: Config, facts: Facts) -> str | None:
    idle = [name for name in _OPTIONS if given(config, name)]
    if config.cluster.colocate or not idle:
        return None
    return f"{flag(config, *idle)}: trainer and engines have devices of their own; add --colocate or leave it out"


def engines_on_the_trainers_devices(config: Config, facts: Facts) -> Iterator[str]:
    """Each engine has the devices of whole trainer ranks on one node."""
    cluster, per = config.cluster, config.cluster.rollout_num_gpus_per_engine
    if not cluster.colocate or config.engine.rollout_external_engine_addrs or per < 1:
        return
    if config.engine_devices > config.trainer_ranks or config.num_engines < 1:
        have = flag(config, "actor_num_nodes", "actor_num_gpus_per_node")
        want = flag(config, "rollout_num_gpus", "rollout_num_gpus_per_engine")
        yield f"{flag(config, 'colocate')}: the trainer has the devices of {have}, the engines want {want}; use as few"
    elif cluster.actor_num_nodes > 1 and cluster.actor_num_gpus_per_node % per:
        parts = flag(config, "rollout_num_gpus_per_engine", "actor_num_gpus_per_node")
        yield f"{flag(config, 'colocate')}: an engine has one node, so the first must divide the second: {parts}"


def sleep(config: Config, facts: Facts) -> Iterator[str]:
    cluster = config.cluster
    if not cluster.colocate:
        return
    asleep = facts.supports_sleep is not None and config.engines_sleep(facts.supports_sleep)
    if asleep and facts.supports_sleep and config.vllm.get("enable_sleep_mode") is False:
        source = config.provenance.get("vllm_enable_sleep_mode", "default")
        yield (
            f"--no-vllm-enable-sleep-mode ({source}): colocated, the engines have to give their memory back; leave it "
            "out, or add --no-offload-rollout"
        )
    if cluster.offload_rollout is False and given(config, "rollout_sleep_level"):
        yield f"{flag(config, 'rollout_sleep_level')}: no engine sleeps with {flag(config, 'offload_rollout')}"
    if cluster.rollout_sleep_level == 2 and config.sync.update_weights_interval != 1:
        yield (
            f"{flag(config, 'rollout_sleep_level')} drops the engines' weights every step, but "
            f"{flag(config, 'update_weights_interval')} does not bring others every step; use --rollout-sleep-level 1"
        )


RULES = (shareable, nobody_to_make_room_for, engines_on_the_trainers_devices, sleep)
