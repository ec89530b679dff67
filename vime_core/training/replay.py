"""Routing replay: experts that were chosen once are used again in later passes over the same tokens.

A router's top-k is a step function, so rounding that differs between engine and trainer, or one optimizer step, sends
some tokens to other experts and moves their log-probs by a lot. Replay keeps the choice and leaves everything else to
the current weights: the gate values of the chosen experts are the router's own, and gradients flow through them.

Two sources: the sampler's choice, which comes with the batch and is used in every pass (R3), and the trainer's own in
the pass for old log-probs, used in the training passes. A pass asks its :class:`Replay`; the routers of the model ask
it too (:mod:`vime_core.training.replay_routers`). Between passes nothing is replayed.
"""

from __future__ import annotations

import abc
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import torch

from vime_core.api import TrainerError
from vime_core.training.replay_rows import ExpertLayers, check_sampled, local_part, sampled_column, sampled_rows

if TYPE_CHECKING:
    from vime_core.batch import StepBatch
    from vime_core.training.packed import MicroBatch


class Replay:
    """Replays nothing, which is what most runs do."""

    #: the training passes replay what the pass for old log-probs chose, so there has to be one
    needs_old_logp: ClassVar[bool] = False

    def check(self, batch: StepBatch) -> None:
        """Before the passes of a step. Raises TrainerError, on all ranks alike, if the batch cannot be replayed."""

    def over(self, batch: StepBatch, *, gradient: bool) -> AbstractContextManager[None]:
        """Around a pass; whatever ends it, nothing of it is left."""
        return nullcontext()

    def within(self, micro: MicroBatch) -> AbstractContextManager[None]:
        """Around the forward of one micro-batch in a pass."""
        return nullcontext()

    def recording(self) -> AbstractContextManager[None]:
        """Around the pass whose choice the training passes repeat."""
        return nullcontext()

    def off(self) -> AbstractContextManager[None]:
        """Around passes of weights whose experts are others (a teacher's)."""
        return nullcontext()

    def metrics(self) -> dict[str, float]:
        """Of the training passes since the last call. Collective over all trainer ranks."""
        return {}


class RouterReplay(Replay, abc.ABC):
    """What both sources share.

    Args:
        device: where routers choose.
        recomputes: activations are computed again in the backward pass, so the choice is kept until then.
    """

    def __init__(self, device: torch.device, recomputes: bool) -> None:
        self._recomputes = recomputes
        self._batch: StepBatch | None = None
        self._gradient = self._off = False
        self._micro: MicroBatch | None = None
        self._waiting: dict[int, deque[torch.Tensor]] = defaultdict(deque)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    @contextmanager
    def over(self, batch: StepBatch, *, gradient: bool) -> Iterator[None]:
        if self._off:
            yield
            return
        self._batch, self._gradient = batch, gradient
        try:
            yield
        finally:
            self._batch, self._micro = None, None
            self._waiting.clear()

    @contextmanager
    def within(self, micro: MicroBatch) -> Iterator[None]:
        if self._batch is not None:
            self._enter(self._batch, micro)
        self._micro = micro
        try:
            yield
        finally:
            self._micro = None

    @contextmanager
    def off(self) -> Iterator[None]:
        self._off = True
        try:
            yield
        finally:
            self._off = False

    def metrics(self) -> dict[str, float]:
        torch.distributed.all_reduce(self._counts)
        differ, rows = self._counts.tolist()
        self._counts.zero_()
        return {"train/routing_replay_diff": differ / rows} if rows else {}

    # asked by the routers --------------------------------------------------------------------------------------
    def choose(self, layer: int, own: torch.Tensor) -> torch.Tensor:
        """[n, topk] experts of the n rows that a router of this rank sees; ``own`` is its choice."""
        if self._batch is None:
            return own
        if self._micro is None:
            return self._again(layer)
        chosen = self._choice(self._micro, layer, own)
        if self._gradient and self._recomputes:
            self._waiting[layer].append(chosen)
        if self._gradient:
            self._count(self._micro, own, chosen)
        return chosen

    def _again(self, layer: int) -> torch.Tensor:
        """Activations that are recomputed in a backward pass: micro-batches come in the order of their forwards."""
        if not self._waiting[layer]:
            raise TrainerError(f"routing replay: layer {layer} is computed again and no micro-batch waits for that")
        return self._waiting[layer].popleft()

    def _count(self, micro: MicroBatch, own: torch.Tensor, chosen: torch.Tensor) -> None:
        if micro.is_dummy:
            return
        real = local_part(micro.packed.tokens, len(own)) >= 0
        differs = (own.sort(dim=-1).values != chosen.sort(dim=-1).values).any(dim=-1) & real
        self._counts += torch.stack([differs.sum(), real.sum()])

    # of a source -----------------------------------------------------------------------------------------------
    def _enter(self, batch: StepBatch, micro: MicroBatch) -> None:
        """A forward begins."""

    @abc.abstractmethod
    def _choice(self, micro: MicroBatch, layer: int, own: torch.Tensor) -> torch.Tensor:
        """Instead of ``own``, as :meth:`choose`."""


class SampledReplay(RouterReplay):
    """The engine's choice, in every pass (R3). Tokens that the engine did not route, and padding, choose themselves."""

    def __init__(self, device: torch.device, recomputes: bool, layers: ExpertLayers) -> None:
        super().__init__(device, recomputes)
        self.layers = layers
        self._rows: Mapping[int, torch.Tensor] = {}

    def check(self, batch: StepBatch) -> None:
        check_sampled(batch, self.layers)

    @contextmanager
    def over(self, batch: StepBatch, *, gradient: bool) -> Iterator[None]:
        if not self._off:
            sampled_column(batch)  # an error here is one on all ranks; inside the pass others would wait
        with super().over(batch, gradient=gradient):
            yield

    def _enter(self, batch: StepBatch, micro: MicroBatch) -> None:
        self._rows = sampled_rows(batch, micro, self.layers.mine)

    def _choice(self, micro: MicroBatch, layer: int, own: torch.Tensor) -> torch.Tensor:
        rows = local_part(self._rows[layer], len(own)).to(own.dtype)
        return torch.where(rows < 0, own, rows)


class RecordedReplay(RouterReplay):
    """The trainer's choice in the pass for old log-probs, in the training passes. Their micro-batches are the same."""

    needs_old_logp: ClassVar[bool] = True

    def __init__(self, device: torch.device, recomputes: bool) -> None:
        super().__init__(device, recomputes)
        self._records: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
        self._recording = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._records.clear()
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def _choice(self, micro: MicroBatch, layer: int, own: torch.Tensor) -> torch.Tensor:
        key = (() if micro.is_dummy else tuple(micro.samples), layer)
        if self._recording:
            self._records[key] = own.to(torch.int16)  # all of the step's are held at once
        if not self._gradient:
            return own
        if key not in self._records:
            raise TrainerError(f"routing replay: layer {layer} has no record of the micro-batch of samples {key[0]}")
        return self._records[key].to(own.dtype)
