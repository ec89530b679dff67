"""The receiving end inside a vLLM worker: one update is one call, and either all of it happens or none.

``update_weights`` first checks everything that can be checked without touching the model (names and shapes against the
checkpoint the engine started from, sizes, the digest of the bytes received) and only then loads, with vLLM's layerwise
reload around it, so no step can ever run on half-loaded parameters. A refusal is recorded, not raised: with several
workers an exception in one would leave vLLM's own session open in the others. Whoever drives the update reads
``receipt`` of every worker afterwards and calls ``rollback`` where they disagree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from vime_core.engine.layout import TIED_HEAD, layout_faults
from vime_core.engine.manifest import Manifest
from vime_core.engine.outcome import Outcome
from vime_core.engine.receivers import RECEIVER, RECEIVER_VARIABLE, make_receiver
from vime_core.engine.sources import Checkpoint, Received, Source
from vime_core.engine.upstream_fixes import install_worker_fixes, reset_moe_kernels

if TYPE_CHECKING:
    import torch

logger = init_logger(__name__)


@dataclass
class VimeInit(WeightTransferInitInfo):
    """Nothing to agree on beforehand."""


@dataclass
class VimeUpdate(WeightTransferUpdateInfo):
    """A manifest on the wire, and the rank of this engine's first worker in a collective transfer."""

    manifest: dict[str, Any]
    rank_offset: int = 1


class VimeTransferEngine(WeightTransferEngine[VimeInit, VimeUpdate]):
    """Registered with vLLM as "vime". start and finish do nothing; the one update call is atomic."""

    init_info_cls, update_info_cls = VimeInit, VimeUpdate
    supports_draft_weight_update = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fixes = install_worker_fixes()
        self.receive = make_receiver(os.environ.get(RECEIVER_VARIABLE, RECEIVER))
        self.checkpoint = Checkpoint(self.model_config.model)
        self.shapes = self.checkpoint.shapes()
        self.current: Source = self.checkpoint
        self.previous: Source | None = None
        self.outcome = Outcome()

    def init_transfer_engine(self, init_info: VimeInit) -> None: ...

    def start_weight_update(self) -> None: ...

    def finish_weight_update(self) -> None: ...

    def trainer_send_weights(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the trainer publishes through vime_core.weights.publisher")

    def shutdown(self) -> None:
        self.current, self.previous = self.checkpoint, None

    def receive_weights(self, update_info: VimeUpdate, load_weights: Any = None) -> None:
        self.outcome = outcome = Outcome(dirty=self.outcome.dirty)
        try:
            manifest = Manifest.from_wire(update_info.manifest)
            outcome.version = manifest.version
            source = self._checked(manifest, update_info.rank_offset)
        except Exception as error:
            outcome.refused = f"{type(error).__name__}: {error}" if not isinstance(error, Refusal) else str(error)
        else:
            self._exchange(source)
        if outcome.refused:
            logger.error("weight update refused: %s", outcome.refused)

    def rollback(self, version: int) -> None:
        """Take back ``version`` if it is what the model has now; otherwise nothing has to be done."""
        if self.outcome.version != version or self.previous is None or self.outcome.refused:
            return
        self._restore(self.previous)
        self.current, self.previous = self.previous, None
        self.outcome.refused = "rolled back"

    def _checked(self, manifest: Manifest, rank_offset: int) -> Received:
        outcome, started = self.outcome, time.perf_counter()
        if outcome.dirty:
            raise Refusal("the model is damaged by an earlier update; restart this engine")
        # the transfer first: in a collective one the other workers wait for this one, whatever it thinks of the names
        source = self.receive(manifest, rank_offset + self._rank())
        manifest = source.manifest
        outcome.seconds["receive"], started = _lap(started)
        outcome.names, outcome.nbytes = manifest.names, manifest.nbytes
        faults = layout_faults(manifest, self.shapes, tied=self._tied())
        if faults:
            raise Refusal("; ".join(faults))
        outcome.digest = source.digest()
        outcome.seconds["digest"], _ = _lap(started)
        if outcome.digest != manifest.digest:
            raise Refusal(f"received bytes have digest {outcome.digest}, the sender's have {manifest.digest}")
        return source

    def _exchange(self, source: Received) -> None:
        started = time.perf_counter()
        try:
            self._load(source)
        except Exception as error:
            self.outcome.refused = f"loading failed: {type(error).__name__}: {error}"
            self._restore(self.current)
        else:
            self.current, self.previous = source, self.current
        self.outcome.seconds["load"], _ = _lap(started)

    def _restore(self, source: Source) -> None:
        try:
            if not source.intact():
                raise Refusal("the former weights are no longer in memory")
            self._load(source)
        except Exception as error:
            self.outcome.dirty = True
            self.outcome.refused += f"; going back failed too: {error}"

    def _load(self, source: Source) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        reset_moe_kernels(self.model, self.device)
        initialize_layerwise_reload(self.model)
        try:
            expected = {name for name, _ in self.model.named_parameters()}
            model: Any = self.model
            loaded = model.load_weights(self._wanted(source))
            if loaded is not None:
                loaded |= self._load_tied_head(source, expected)
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
        missing = sorted(expected - loaded) if loaded is not None else []
        if missing:
            raise Refusal(f"the model has parameters that no tensor reached: {missing[:3]} ({len(missing)} in all)")

    def _load_tied_head(self, source: Source, expected: set[str]) -> set[str]:
        """vLLM's models skip a head that is the embedding, but the head may hold a copy of its own, packed for the
        device at start-up: without the embedding's bytes it would go on with the old weights. Returns names loaded."""
        if not self._tied() or TIED_HEAD not in expected:
            return set()
        parameter: Any = self.model.get_parameter(TIED_HEAD)
        for name, tensor in source.tensors():
            if name.endswith("embed_tokens.weight"):
                parameter.weight_loader(parameter, tensor)
                return {TIED_HEAD}
        return set()

    def _wanted(self, source: Source) -> Iterator[tuple[str, torch.Tensor]]:
        """Without the head where it is the embedding: vLLM's loaders skip it."""
        tied = self._tied()
        return ((name, tensor) for name, tensor in source.tensors() if not (tied and name == TIED_HEAD))

    def _tied(self) -> bool:
        return bool(getattr(self.model_config.hf_config, "tie_word_embeddings", False))

    def _rank(self) -> int:
        parallel = self.parallel_config
        return parallel.data_parallel_index * parallel.world_size + parallel.rank


class Refusal(ValueError):
    """The update cannot be taken; the message is the whole story."""


def _lap(started: float) -> tuple[float, float]:
    now = time.perf_counter()
    return now - started, now
