"""Parameter counts: of a whole model, and of one rank's share of it in Megatron's layout.

A tensor-parallel rank holds whole layer norms and routers and its part of every linear; an expert-parallel rank holds
its experts. The last pipeline stage of a tied model has a copy of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

from vime_cli.plan.layout import Layout
from vime_cli.plan.shape import ModelShape


@dataclass(frozen=True)
class RankParameters:
    """Parameters of one rank; experts apart, because they have replicas of their own. ``largest`` is the largest single
    matrix."""

    dense: int
    expert: int
    largest: int

    @property
    def total(self) -> int:
        return self.dense + self.expert


def rank_parameters(shape: ModelShape, layout: Layout, stage: int, *, critic: bool = False) -> RankParameters:
    """Of a rank of pipeline stage ``stage``. A critic has one row where a language model has its output layer."""
    layers = layout.layers(shape.layers, stage)
    table = layout.vocab(shape.vocab) * shape.hidden
    first, last = stage == 0, stage == layout.pp - 1
    ends = (table if first else 0) + (shape.hidden if last else 0)
    if last and critic:
        ends += shape.hidden
    elif last and not (shape.tied and first):
        ends += table
    expert = layers * _experts(shape, layout)
    inner = 2 * shape.ffn // layout.tp * shape.hidden if not shape.experts else expert // max(2 * layers, 1)
    return RankParameters(layers * _layer(shape, layout) + ends, expert, max(table if first or last else 0, inner))


def whole(shape: ModelShape) -> int:
    """Of the whole model, each matrix once: what the checkpoint's files hold."""
    return rank_parameters(shape, Layout(), 0).total


def active(shape: ModelShape) -> int:
    """Parameters that take part in one token's matrix products, output layer included: ``2 *`` this is its FLOPs of a
    forward pass without attention."""
    one = Layout()
    experts = _experts(shape, one) * shape.experts_per_token // shape.experts if shape.experts else 0
    return shape.layers * (_layer(shape, one) + experts) + shape.vocab * shape.hidden


def _layer(shape: ModelShape, layout: Layout) -> int:
    """One layer without its experts, on one rank."""
    h, q, kv, tp = shape.hidden, shape.q_width, shape.kv_width, layout.tp
    attention = (q + 2 * kv) // tp * (h + shape.qkv_bias) + h * q // tp + 2 * shape.head_dim * shape.qk_norm
    mlp = shape.experts * h if shape.experts else 3 * h * shape.ffn // tp
    return attention + mlp + 2 * h


def _experts(shape: ModelShape, layout: Layout) -> int:
    """The experts of one layer on one rank."""
    return shape.experts // layout.ep * 3 * shape.hidden * shape.ffn // layout.etp
