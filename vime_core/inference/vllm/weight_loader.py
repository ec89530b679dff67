"""An update inside a vLLM worker: received, which changes nothing, then loaded with vLLM's layerwise reload around it.
So no step can ever run on half-loaded parameters.

An error is recorded, not raised: with several workers an exception in one would leave the others with an update that
nobody ends. Whoever drives the update reads the ``result`` of every worker. The version before is not kept: where
loading fails after the first tensor the model is in pieces, until another update is loaded as a whole.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vime_core.api import SyncError
from vime_core.inference.vllm.upstream_fixes import reset_moe_kernels
from vime_core.weights import TIED_HEAD, IncomingWeights, ModelLayout, Receive, UpdateResult

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

Named = Iterator[tuple[str, "torch.Tensor"]]


class WeightLoader:
    """The weights of one worker's model.

    Args:
        model: vLLM's, already loaded from ``model_config.model``.
        model_config, parallel_config: vLLM's.
        device: where the model is.
        receive: gets the bytes of an update.
    """

    def __init__(
        self, model: torch.nn.Module, model_config: Any, parallel_config: Any, device: torch.device, receive: Receive
    ) -> None:
        self.model, self.model_config, self.parallel_config, self.device = model, model_config, parallel_config, device
        self._receive = receive
        self._tied = bool(getattr(model_config.hf_config, "tie_word_embeddings", False))
        self._embedding: torch.Tensor | None = None
        self.layout = ModelLayout.of_checkpoint(model_config.model, self._tied)
        self.incoming: IncomingWeights | None = None
        self.result = UpdateResult()

    def receive(self, version: int, terms: Mapping[str, Any], rank_offset: int) -> None:
        """Meet the sender; all is verified that the transport holds as a whole. ``rank_offset`` is the rank of this
        engine's first worker in the group."""
        self.discard()
        self.result = UpdateResult(version)
        with self._step("receive"):
            self.incoming = self._receive(version, terms, rank_offset + self._rank(), self.layout.require)

    def load(self, version: int) -> None:
        """Load what was received of ``version``; ``result`` says what became of it."""
        incoming, self.incoming = self.incoming, None
        if self.result.error:
            return
        with self._step("load"):
            if incoming is None or incoming.version != version:
                raise SyncError(f"weights version {version} is to be loaded, and was not received")
            try:
                self._load(incoming.tensors())
            finally:
                self._embedding = None
                incoming.drain()
            self.result.describe(incoming.manifest)

    def discard(self) -> None:
        """Forget what was received and not loaded."""
        if self.incoming is not None:
            self.incoming.abandon()
            self.incoming = None

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        except Exception as error:
            text = str(error) if isinstance(error, SyncError) else f"{type(error).__name__}: {error}"
            self.result.error = f"loading failed: {text}" if self.result.loaded else text
            logger.error("weight update, %s: %s", name, self.result.error)
        self.result.seconds[name] = time.perf_counter() - started

    def _load(self, tensors: Named) -> None:
        import torch

        first = list(itertools.islice(tensors, 1))  # what arrives wrong at once has touched nothing
        self.result.loaded = True
        with torch.device(self.device):  # of what loading makes on its way
            self._reload(itertools.chain(first, tensors))
        torch.get_device_module(self.device).synchronize()  # the next step may run on another stream

    def _reload(self, tensors: Named) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        reset_moe_kernels(self.model, self.device)
        initialize_layerwise_reload(self.model)
        try:
            expected = {name for name, _ in self.model.named_parameters()}
            model: Any = self.model
            loaded = model.load_weights(self._wanted(tensors))
            for _ in tensors:  # a loader may stop before the end, where digest and names are compared
                pass
            if loaded is not None:
                loaded |= self._load_tied_head(expected)
        finally:
            finalize_layerwise_reload(self.model, self.model_config)
        missing = sorted(expected - loaded) if loaded is not None else []
        if missing:
            raise SyncError(f"the model has parameters that no tensor reached: {missing[:3]} ({len(missing)} in all)")

    def _load_tied_head(self, expected: set[str]) -> set[str]:
        """vLLM's models skip a head that is the embedding, but the head may hold a copy of its own, packed for the
        device at start-up: without the embedding's bytes it would go on with the old weights. Returns names loaded."""
        if self._embedding is None or TIED_HEAD not in expected:
            return set()
        parameter: Any = self.model.get_parameter(TIED_HEAD)
        parameter.weight_loader(parameter, self._embedding)
        return {TIED_HEAD}

    def _wanted(self, tensors: Named) -> Named:
        """Without the head where it is the embedding: vLLM's loaders skip it."""
        for name, tensor in tensors:
            if self._tied and name == TIED_HEAD:
                continue
            if self._tied and name.endswith("embed_tokens.weight"):
                self._embedding = tensor
            yield name, tensor

    def _rank(self) -> int:
        parallel = self.parallel_config
        return parallel.data_parallel_index * parallel.world_size + parallel.rank
