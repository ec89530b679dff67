"""Routing replay of models with experts."""

from __future__ import annotations

from collections.abc import Iterator

from vime_core.config.facts import Facts
from vime_core.config.rules.option_text import flag
from vime_core.config.sections import Config


def routing_replay(config: Config, facts: Facts) -> Iterator[str]:
    """There are experts to choose, a choice to repeat, and a router that takes one."""
    wanted = [name for name in ("use_routing_replay", "use_rollout_routing_replay") if getattr(config.train, name)]
    if not wanted:
        return
    if facts.model is not None and not facts.experts:
        yield f"{flag(config, *wanted)}, but the model has no experts; leave it out"
    if config.train.loss_type == "sft_loss":
        yield f"{flag(config, *wanted)}: supervised training has no pass before it to choose from; leave it out"
    if config.megatron_extra.get("moe_router_fusion"):
        yield f"{flag(config, *wanted)} needs a router that is not fused; leave out --moe-router-fusion"
    if config.megatron_extra.get("moe_router_load_balancing_type") == "sinkhorn":
        yield f"{flag(config, *wanted)}: a sinkhorn router takes no choice from outside"


RULES = (routing_replay,)
