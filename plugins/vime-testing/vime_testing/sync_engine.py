"""An engine whose model is a dictionary of tensors, with the checks and the two versions that a vLLM worker has."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.inference import UpdatableEngine, layout_faults
from vime_core.weights import Manifest, Outcome, make_receiver

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

        self.name, self._shapes, self._receive = name, dict(shapes), make_receiver(receiver)
        self._model: Weights = {key: torch.zeros(shape) for key, shape in shapes.items()}
        self._former: Weights | None = None
        self._outcome, self._version, self._paused = Outcome(), 0, False
        self._faults = Faults()

    # what the driver's handle calls --------------------------------------------------------------------------
    def started(self) -> dict[str, Any]:
        return {"name": self.name, "url": "", "workers": 1, "pid": os.getpid()}

    async def weight_version(self) -> int:
        return self._version

    async def score(self, tokens: list[int]) -> list[float]:
        return [value + self._faults.shift for value in answer_of(self._model, tokens)]

    async def abort(self) -> None: ...

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

    def _update(self, wire: Mapping[str, Any], rank_offset: int) -> None:
        self._outcome = outcome = Outcome()
        try:
            manifest = Manifest.from_wire(wire)
            outcome.version = manifest.version
            source = self._receive(manifest, rank_offset)
            manifest = source.manifest
            outcome.names, outcome.nbytes, outcome.digest = manifest.names, manifest.nbytes, source.digest()
            faults = layout_faults(manifest, self._shapes, tied=False)
            if faults or outcome.digest != manifest.digest:
                raise ValueError("; ".join(faults) or "the received bytes have another digest than the sender's")
            self._former, self._model = self._model, self._loaded(source)
        except Exception as error:
            outcome.refused = f"{type(error).__name__}: {error}"

    async def worker_call(self, method: str, *arguments: str) -> list[str]:
        if method == "vime_update":
            self._update(json.loads(arguments[0]), int(arguments[1]))
        if method == "vime_rollback":
            self._take_back_model(int(arguments[0]))
        return [json.dumps(dataclasses.asdict(self._outcome))]

    async def set_version(self, version: int) -> None:
        self._version = version

    async def drop_caches(self) -> None: ...

    async def shutdown(self, timeout: float = 10.0) -> None: ...

    def _loaded(self, source: Any) -> Weights:
        loaded: Weights = {}
        for name, tensor in source.tensors():
            if len(loaded) == self._faults.break_after:
                raise RuntimeError(f"loading broke at {name}, as ordered")
            loaded[name] = tensor.clone()
        return loaded

    def _take_back_model(self, version: int) -> None:
        outcome = self._outcome
        if outcome.version == version and self._former is not None and not outcome.refused:
            self._model, self._former = self._former, None
            outcome.refused = "rolled back"
