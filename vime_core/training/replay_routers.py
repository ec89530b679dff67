"""Megatron's routers, asked for their choice through a :class:`~vime_core.training.replay.Replay`.

Megatron has a place in its top-k for a replay object. Its own object keeps a list of all routers of the process and
one target a router; ours knows pass, micro-batch and layer, so several models, pipelined micro-batches and recomputed
activations do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vime_core.api import ConfigError
from vime_core.training.replay import RecordedReplay, Replay, SampledReplay
from vime_core.training.replay_rows import ExpertLayers

if TYPE_CHECKING:
    from vime_core.config import Config
    from vime_core.training.replay import RouterReplay


class Switch:
    """In the place of megatron's RouterReplay in one router."""

    def __init__(self, replay: RouterReplay, layer: int) -> None:
        self.replay, self.layer = replay, layer

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default_compute_topk: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """([n, topk] scores of the chosen experts, with gradient, and their ids)."""
        values, own = default_compute_topk(scores, topk, num_groups=num_groups, group_topk=group_topk)
        chosen = self.replay.choose(self.layer, own)
        return (values, own) if chosen is own else (scores.gather(1, chosen), chosen)


def make_replay(config: Config, modules: Sequence[Any], device: torch.device) -> Replay:
    """What the configuration asks for, attached to the routers of the GPTModels ``modules``.

    Raises:
        ConfigError: a router whose choice cannot be replaced.
    """
    train = config.train
    if not (train.use_rollout_routing_replay or train.use_routing_replay):
        return Replay()
    settings = modules[0].config
    if settings.moe_router_fusion or settings.moe_router_load_balancing_type == "sinkhorn":
        raise ConfigError("routing replay: a fused or a sinkhorn router takes no choice from outside; leave both off")
    routers = {router.layer_number - 1: router for module in modules for router in _routers(module)}
    recomputes = settings.recompute_granularity is not None
    replay: RouterReplay
    if train.use_rollout_routing_replay:
        whole, experts, topk = _layers_with_experts(settings), settings.num_moe_experts, settings.moe_router_topk
        replay = SampledReplay(device, recomputes, ExpertLayers(sorted(routers), whole, experts, topk))
    else:
        replay = RecordedReplay(device, recomputes)
    for layer, router in routers.items():
        router.router_replay = Switch(replay, layer)
    return replay


def _layers_with_experts(settings: Any) -> list[int]:
    """Of the whole model, counted from 0. ``moe_layer_freq``: every n-th layer has experts, or a pattern of 0 and 1."""
    frequency = settings.moe_layer_freq
    if isinstance(frequency, int):
        return list(range(0, settings.num_layers, frequency))
    return [layer for layer, has in enumerate(frequency) if has]


def _routers(module: Any) -> list[Any]:
    from megatron.core.transformer.moe.router import TopKRouter

    return [one for one in module.decoder.modules() if isinstance(one, TopKRouter)]
