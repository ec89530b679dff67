"""Metrics of PPO's critic."""

from __future__ import annotations

from vime_core.observe.names.metric import Mean, Metric


def _of(name: str, unit: str, mean: Mean, meaning: str, definition: str) -> Metric:
    return Metric(f"train/{name}", unit, meaning, definition, mean, "train/step")


CRITIC = (
    _of(
        "value_loss",
        "1",
        "weighted sum",
        "what the critic minimises",
        "sum over trainable tokens of weight * max((V - G)^2, (clip(V, V_old +- value_clip) - G)^2); no factor 1/2",
    ),
    _of(
        "value_clipfrac",
        "ratio",
        "token mean",
        "values held back by the clip",
        "fraction of trainable tokens with |V - V_old| > value_clip",
    ),
    _of(
        "explained_variance",
        "1",
        "token mean",
        "how much of the returns the critic foresees: 1 is all, 0 no more than a constant, below 0 less than that",
        "1 - var(G - V_old) / var(G) over trainable tokens of the rollout step; absent where all G are equal",
    ),
    _of("values/mean", "1", "token mean", "what the critic expects", "mean V_old over trainable tokens"),
    _of("returns/mean", "1", "token mean", "what came of it", "mean G over trainable tokens"),
    _of("critic-grad_norm", "1", "value", "size of the critic's update", "global L2 norm of its gradient, unclipped"),
    _of("critic-lr-pg_<group>", "1", "value", "its learning rate", "learning rate of parameter group <group>"),
    _of(
        "critic-skipped_steps",
        "1",
        "count",
        "updates of the critic that were not made; should be 0",
        "optimizer steps of this rollout step whose gradient norm was not finite",
    ),
)
