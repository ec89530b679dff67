"""Bytes that a pass over one packed micro-batch holds on one rank: what the backward pass needs, and what passes by.

Counted on the torch module spec (``devices/cpu/spec.py``), tensor by tensor: RMSNorm keeps its input and the
normalised rows in float32 and its output in the model's type; core attention keeps queries, keys, values and output in
float32; a gated MLP keeps five times its inner width. Kernels that fuse these keep less, so elsewhere this is an upper
bound. ``b`` is bytes of the model's type.
"""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.plan.layout import Layout
from vime_core.plan.parameters import Share
from vime_core.plan.shape import ModelShape

_F32 = 4


@dataclass(frozen=True)
class Pass:
    """One micro-batch on one rank.

    Attributes:
        tokens: of the packed row, on this context rank. predicted: those of them that predict a response token.
        chunk: tokens whose logits exist at a time.
        bytes: of an element of the model. recompute: "full", "selective" or None.
        entropy: the loss has an entropy term.
    """

    tokens: int
    predicted: int
    chunk: int
    bytes: int
    recompute: str | None = None
    entropy: bool = False


def layer_saved(shape: ModelShape, layout: Layout, micro: Pass) -> int:
    """Of one layer, for its backward pass, without recomputation."""
    b, tp, rows = micro.bytes, layout.tp, layout.shared
    norms = 2 * (2 * _F32 + b) * shape.hidden // rows
    rotary = 4 * b * shape.head_dim
    per_token = norms + rotary + (_attention(shape, b) + 4 * shape.heads) // tp + _mlp(shape, layout, b)
    return per_token * micro.tokens


def _attention(shape: ModelShape, b: int) -> int:
    """Query and key norms, the kernel's inputs and output, the projection's input."""
    q, kv = shape.q_width, shape.kv_width
    own = _kernel(shape) + b * q
    if shape.qk_norm:
        own += 2 * _F32 * (q + kv) + (_F32 * kv if b == _F32 else 0)
    return own


def _kernel(shape: ModelShape) -> int:
    return _F32 * (2 * shape.q_width + 2 * shape.kv_width)


def _mlp(shape: ModelShape, layout: Layout, b: int) -> int:
    if not shape.experts:
        return 5 * b * shape.ffn // layout.tp
    # each token goes to its experts with a copy of its hidden state; experts are taken to be used alike
    a_visit = 6 * b * shape.ffn // layout.etp + b * shape.hidden + 24
    visits = shape.experts_per_token * a_visit * layout.etp // layout.shared
    return visits + shape.experts * (b + 1) // layout.shared


def training(shape: ModelShape, layout: Layout, stage: int, share: Share, micro: Pass, in_flight: int) -> int:
    """Passing bytes of forward and backward, at their peak.

    Args:
        in_flight: micro-batches whose activations exist at the same time (pipeline stages warm up with several).
    """
    layers = layout.layers(shape.layers, stage)
    whole = layer_saved(shape, layout, micro)
    edge = micro.bytes * shape.hidden * micro.tokens // layout.shared
    kernel = (_kernel(shape) - micro.bytes * (shape.q_width + 2 * shape.kv_width)) // layout.tp * micro.tokens
    kept = {None: whole, "selective": whole - kernel, "full": edge}[micro.recompute]
    saved = layers * kept * in_flight
    again = {None: 0, "selective": kernel, "full": whole}[micro.recompute]
    inner = shape.ffn * shape.experts_per_token if shape.experts else shape.ffn
    work = again + 6 * micro.bytes * inner // layout.tp * micro.tokens
    if stage == layout.pp - 1:
        saved += (
            2 * _F32 * shape.hidden // layout.shared
        ) * micro.tokens + micro.bytes * shape.hidden * micro.predicted
        work = max(work, _head_backward(shape, layout, micro))
    return max(saved + work, 2 * _F32 * share.largest)  # or the optimizer's step, a matrix at a time


def _head_backward(shape: ModelShape, layout: Layout, micro: Pass) -> int:
    """Logits of a chunk made again, their slope, and the output matrix's gradient."""
    table = layout.vocab(shape.vocab) * shape.hidden
    several = micro.predicted > micro.chunk > 0
    logits = _chunk(micro) * layout.vocab(shape.vocab) * (2 * _F32 + (micro.bytes if micro.bytes < _F32 else 0))
    if micro.bytes == _F32:
        return logits + _F32 * table
    return logits + table * (_F32 if several else micro.bytes) + table * micro.bytes


def forward(shape: ModelShape, layout: Layout, stage: int, micro: Pass) -> int:
    """Passing bytes of a pass without gradient: a layer at a time, then the logits of a chunk."""
    b, inner = micro.bytes, shape.ffn * (shape.experts_per_token or 1)
    mlp = 4 * b * inner // layout.tp
    attention = (_kernel(shape) + b * (shape.q_width + 2 * shape.kv_width)) // layout.tp
    rows = max(mlp, attention) + 4 * b * shape.hidden // layout.shared
    if stage < layout.pp - 1:
        return rows * micro.tokens
    size = _F32 + (b if b < _F32 else 0) + (_F32 if micro.entropy else 0)
    final = (b + 2 * _F32) * shape.hidden // layout.shared * micro.tokens
    return max(rows * micro.tokens, final + _chunk(micro) * layout.vocab(shape.vocab) * size)


def _chunk(micro: Pass) -> int:
    return min(micro.chunk, micro.predicted) if micro.chunk > 0 else micro.predicted
