"""The receiving end inside a vLLM worker: one update is one call, and either all of it happens or none.

``receive`` first checks everything that can be checked without touching the model (names and shapes against the
checkpoint the engine started from, sizes, the digest of the bytes received) and only then loads, with vLLM's layerwise
reload around it, so no step can ever run on half-loaded parameters. A refusal is recorded, not raised: with several
workers an exception in one would leave the others with an update that nobody ends. Whoever drives the update reads the
``outcome`` of every worker and calls ``rollback`` where they disagree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vime_core.inference.vllm.layout import TIED_HEAD, layout_faults
from vime_core.inference.vllm.upstream_fixes import reset_moe_kernels
from vime_core.weights import Checkpoint, Manifest, Outcome, Receive, ReceivedBuckets, Source

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class WeightReceiver:
    """The weights of one worker's model, as versions.

    Args:
        model: vLLM's, already loaded from ``model_config.model``.
        model_config, parallel_config: vLLM's.
        device: where the model is.
        receive: gets the bytes of a manifest, given this worker's rank in a collective transfer.
    """

    def __init__(
        self, model: torch.nn.Module, model_config: Any, parallel_config: Any, device: torch.device, receive: Receive
    ) -> None:
        self.model, self.model_config, self.parallel_config, self.device = model, model_config, parallel_config, device
        self._receive = receive
        self.checkpoint = Checkpoint(self.model_config.model)
        self.shapes = self.checkpoint.shapes()
        self.current: Source = self.checkpoint
        self.previous: Source | None = None
        self.outcome = Outcome()

    def receive(self, wire: Mapping[str, Any], rank_offset: int) -> None:
        """Take the weights that a manifest on the wire describes; ``outcome`` says what became of it. ``rank_offset``
        is the rank of this engine's first worker in a collective transfer."""
        self.outcome = outcome = Outcome(dirty=self.outcome.dirty)
        try:
            manifest = Manifest.from_wire(wire)
            outcome.version = manifest.version
            source = self._checked(manifest, rank_offset)
        except Exception as error:
            outcome.refused = (
                f"{type(error).__name__}: {error}" if not isinstance(error, UpdateRejected) else str(error)
            )
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

    def _checked(self, manifest: Manifest, rank_offset: int) -> ReceivedBuckets:
        outcome, started = self.outcome, time.perf_counter()
        if outcome.dirty:
            raise UpdateRejected("the model is damaged by an earlier update; restart this engine")
        # the transfer first: in a collective one the other workers wait for this one, whatever it thinks of the names
        source = self._receive(manifest, rank_offset + self._rank())
        manifest = source.manifest
        outcome.seconds["receive"], started = _lap(started)
        outcome.names, outcome.nbytes = manifest.names, manifest.nbytes
        faults = layout_faults(manifest, self.shapes, tied=self._tied())
        if faults:
            raise UpdateRejected("; ".join(faults))
        outcome.digest = source.digest()
        outcome.seconds["digest"], _ = _lap(started)
        if outcome.digest != manifest.digest:
            raise UpdateRejected(f"received bytes have digest {outcome.digest}, the sender's have {manifest.digest}")
        return source

    def _exchange(self, source: ReceivedBuckets) -> None:
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
                raise UpdateRejected("the former weights are no longer in memory")
            self._load(source)
        except Exception as error:
            self.outcome.dirty = True
            self.outcome.refused += f"; going back failed too: {error}"

    def _load(self, source: Source) -> None:
        import torch

        with torch.device(self.device):  # of what loading makes on its way
            self._reload(source)
        torch.get_device_module(self.device).synchronize()  # the next step may run on another stream

    def _reload(self, source: Source) -> None:
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
            raise UpdateRejected(
                f"the model has parameters that no tensor reached: {missing[:3]} ({len(missing)} in all)"
            )

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


class UpdateRejected(ValueError):
    """The update cannot be taken; the message is the whole story."""


def _lap(started: float) -> tuple[float, float]:
    now = time.perf_counter()
    return now - started, now
