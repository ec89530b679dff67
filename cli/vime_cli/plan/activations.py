"""Bytes that a pass over one packed micro-batch takes on one rank: what the backward pass needs, and what passes by.

Counted on the torch module spec (``devices/cpu/spec.py``), tensor by tensor: RMSNorm keeps its input and the
normalised rows in float32 and its output in the model's type; core attention keeps queries, keys, values and output in
float32; a gated MLP keeps five times its inner width. Kernels that fuse these keep less, so elsewhere this is an upper
bound. Lists here are bytes a token, one number a tensor; ``b`` is bytes of the model's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vime_cli.plan.layout import Layout
from vime_cli.plan.parameters import rank_parameters
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.tensor_bytes import PeakBytes, TensorBytes

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

    def rows(self, widths: Iterable[int]) -> TensorBytes:
        """Tensors of all tokens."""
        return TensorBytes.of(*(width * self.tokens for width in widths))

    @property
    def logits(self) -> int:
        """Rows of logits that exist at a time."""
        return min(self.chunk, self.predicted) if self.chunk > 0 else self.predicted


# a layer ---------------------------------------------------------------------------------------------------------
def _layer(shape: ModelShape, layout: Layout, b: int, *, kernel: bool = True) -> list[int]:
    """What one layer keeps for its backward pass; without ``kernel`` core attention is made again from its inputs."""
    h, tp = shape.hidden // layout.shared, layout.tp
    inside = _kernel(shape) if kernel else _inputs(shape, b)
    own = [*inside, b * shape.q_width, *_head_norms(shape, b), _F32 * shape.heads]
    norms = 2 * [_F32 * h, _F32 * h, b * h]
    return [*norms, 4 * b * shape.head_dim, *(width // tp for width in own), *_mlp(shape, layout, b)]


def _kernel(shape: ModelShape) -> list[int]:
    """Queries, output, keys and values of core attention, in float32."""
    return 2 * [_F32 * shape.q_width, _F32 * shape.kv_width]


def _inputs(shape: ModelShape, b: int) -> list[int]:
    return [b * shape.q_width, b * shape.kv_width, b * shape.kv_width]


def _head_norms(shape: ModelShape, b: int) -> list[int]:
    if not shape.qk_norm:
        return []
    values = [_F32 * shape.kv_width] if b == _F32 else []
    return [*2 * [_F32 * shape.q_width, _F32 * shape.kv_width], *values]


def _mlp(shape: ModelShape, layout: Layout, b: int) -> list[int]:
    if not shape.experts:
        return [n * b * shape.ffn // layout.tp for n in (2, 1, 1, 1)]
    # each token goes to its experts with a copy of its hidden state; experts are taken to be used alike
    inner = [n * b * shape.ffn // layout.etp for n in (2, 1, 1, 1, 1)]
    visit = [shape.experts_per_token * width * layout.etp // layout.shared for width in (*inner, b * shape.hidden, 24)]
    return [*visit, shape.experts * (b + 1) // layout.shared]


def _inner(shape: ModelShape) -> int:
    """Inner width of all experts that a token visits, or of the one MLP."""
    return shape.ffn * shape.experts_per_token if shape.experts else shape.ffn


# phases ----------------------------------------------------------------------------------------------------------
def training(shape: ModelShape, layout: Layout, stage: int, micro: Pass, in_flight: int) -> PeakBytes:
    """Forward and backward.

    Args:
        in_flight: micro-batches whose activations exist at the same time (pipeline stages warm up with several).
    """
    return PeakBytes.of(_training(shape, layout, stage, micro, in_flight))


def _training(shape: ModelShape, layout: Layout, stage: int, micro: Pass, in_flight: int) -> Iterator[TensorBytes]:
    b, layers = micro.bytes, layout.layers(shape.layers, stage)
    whole = _layer(shape, layout, b)
    kept, again = {
        None: (whole, []),
        "selective": (_layer(shape, layout, b, kernel=False), _kernel_of_rank(shape, layout)),
        "full": ([b * shape.hidden // layout.shared], whole),
    }[micro.recompute]
    saved = micro.rows(kept) * (layers * in_flight)
    if stage == layout.pp - 1:
        final = micro.rows(2 * [_F32 * shape.hidden // layout.shared])
        saved += final + TensorBytes.of(b * shape.hidden * micro.predicted)
        yield from (saved + one for one in _head_backward(shape, layout, micro))
    work = [n * b * _inner(shape) // layout.tp for n in (2, 2, 1, 1)]
    yield saved + micro.rows([*again, *work])
    largest = rank_parameters(shape, layout, stage).largest
    yield TensorBytes.of(*2 * [_F32 * largest])  # the optimizer's step, a matrix at a time


def _kernel_of_rank(shape: ModelShape, layout: Layout) -> list[int]:
    return [width // layout.tp for width in _kernel(shape)]


def _head_backward(shape: ModelShape, layout: Layout, micro: Pass) -> Iterator[TensorBytes]:
    """Logits of a chunk made again and their slope, beside the output matrix's gradient (``trainer/logprobs.py``)."""
    b, vocab = micro.bytes, layout.vocab(shape.vocab)
    table, logits = vocab * shape.hidden, micro.logits * vocab
    several = micro.predicted > micro.chunk > 0
    gradient = TensorBytes.of(table * (_F32 if several else b))
    if b == _F32:
        yield gradient + TensorBytes.of(_F32 * logits, _F32 * logits)
        return
    yield gradient + TensorBytes.of(_F32 * logits, _F32 * logits, b * logits)
    yield gradient + TensorBytes.of(_F32 * logits, b * logits, b * table)


def forward(shape: ModelShape, layout: Layout, stage: int, micro: Pass) -> PeakBytes:
    """A pass without gradient: a layer at a time, then the logits of a chunk."""
    return PeakBytes.of(_forward(shape, layout, stage, micro))


def _forward(shape: ModelShape, layout: Layout, stage: int, micro: Pass) -> Iterator[TensorBytes]:
    b, hidden = micro.bytes, shape.hidden // layout.shared
    edge = micro.rows(4 * [b * hidden])
    yield edge + micro.rows([n * b * _inner(shape) // layout.tp for n in (2, 1, 1)])
    yield edge + micro.rows([width // layout.tp for width in (*_kernel(shape), *_inputs(shape, b))])
    if stage == layout.pp - 1:
        sizes = [_F32, *([b] if b < _F32 else []), *([_F32] if micro.entropy else [])]
        logits = micro.logits * layout.vocab(shape.vocab)
        yield micro.rows([b * hidden, *2 * [_F32 * hidden]]) + TensorBytes.of(*(size * logits for size in sizes))
