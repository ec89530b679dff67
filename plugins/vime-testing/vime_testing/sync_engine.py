"""An engine whose model is a dictionary of tensors; an update takes the steps that it takes in a vLLM worker."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.inference import StartedEngine, UpdatableEngine
from vime_core.weights import IncomingWeights, ModelLayout, UpdateResult, make_receiver

if TYPE_CHECKING:
    import torch

Weights = dict[str, "torch.Tensor"]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Faults:
    """What is to go wrong in the next updates.

    Attributes:
        break_after: loading fails after so many tensors.
        shift: the canary's log-probs are off by this much.
    """

    break_after: int | None = None
    shift: float = 0.0


def answer_of(weights: Weights, tokens: Sequence[int]) -> list[float]:
    """Log-probs of tokens[1:] by a model of these weights: numbers that any change of a weight moves."""
    total = sum(float(tensor.double().abs().sum()) + tensor.numel() for tensor in weights.values())
    return [-(total % 7.0) - token / 16 for token in tokens[1:]]


class BenchEngine(UpdatableEngine):
    """One engine with one worker.

    Args:
        receiver: string target of the engine's end, as a worker of vLLM takes it.
    """

    def __init__(self, name: str, shapes: Shapes, receiver: str) -> None:
        import torch

        self.name, self._layout, self._receive = name, ModelLayout(dict(shapes)), make_receiver(receiver)
        self._model: Weights = {key: torch.zeros(shape) for key, shape in shapes.items()}
        self._incoming: IncomingWeights | None = None
        self._result, self._version, self._paused = UpdateResult(), 0, False
        self._faults = Faults()

    # what the driver's handle calls --------------------------------------------------------------------------
    def started(self) -> StartedEngine:
        return StartedEngine(url="", workers=1, pid=os.getpid())

    async def weight_version(self) -> int:
        return self._version

    async def score(self, tokens: list[int]) -> list[float]:
        self.require_weights()
        return [value + self._faults.shift for value in answer_of(self._model, tokens)]

    async def abort(self, ids: Sequence[str] | None = None) -> int:
        return 0

    async def health(self) -> None: ...

    # what the test calls -------------------------------------------------------------------------------------
    async def weights(self) -> Weights:
        return dict(self._model)

    async def order(self, faults: Faults) -> None:
        self._faults = faults

    # vLLM's part of an update --------------------------------------------------------------------------------
    async def is_paused(self) -> bool:
        return self._paused

    async def pause(self) -> None:
        self._paused = True

    async def resume(self) -> None:
        self._paused = False

    async def worker_call(self, method: str, *arguments: str) -> list[str]:
        try:
            if method == "vime_receive":
                self._receive_update(int(arguments[0]), json.loads(arguments[1]), int(arguments[2]))
            if method == "vime_load":
                self._load()
            if method == "vime_discard":
                self._forget()
        except Exception as error:
            self._result.error = f"{type(error).__name__}: {error}"
        return [json.dumps(dataclasses.asdict(self._result))]

    async def set_version(self, version: int) -> None:
        self._version = version

    async def drop_caches(self) -> None: ...

    async def shutdown(self, timeout: float = 10.0) -> None: ...

    def _receive_update(self, version: int, terms: Mapping[str, Any], rank: int) -> None:
        self._forget()
        self._result = UpdateResult(version)
        self._incoming = self._receive(version, terms, rank, self._layout.require)

    def _load(self) -> None:
        """Into the model that is there, tensor by tensor."""
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise RuntimeError("nothing was received")
        try:
            for count, (name, tensor) in enumerate(incoming.tensors()):
                if count == self._faults.break_after:
                    raise RuntimeError(f"loading broke at {name}, as ordered")
                self._result.loaded = True
                self._model[name] = tensor.clone()
        finally:
            incoming.drain()
        self._result.describe(incoming.manifest)

    def _forget(self) -> None:
        if self._incoming is not None:
            self._incoming.abandon()
            self._incoming = None
