"""Several models of one architecture in the place of one: copies of weights in host memory, put in by turns.

A copy is this rank's share of a model, by the names of its own state. Weights are copied into the model's tensors and
never bound anew: with the distributed optimizer they are views of Megatron's flat buffers, and elsewhere graphs,
gradient hooks and the optimizer hold on to them. A copy in the model's own type is exact, so the policy comes back to
the bit, and the optimizer's main parameters are not touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from vime_core.api import CheckpointError, TrainerError

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend
    from vime_core.training.model import MegatronModel

Weights = dict[str, torch.Tensor]


class WeightSwap:
    """Named copies of the weights of ``model``. Only :meth:`load` is a collective."""

    def __init__(self, model: MegatronModel, device: DeviceBackend) -> None:
        self._model, self._device = model, device
        self._sets: dict[str, Weights] = {}
        #: where the policy waits while another model is in its place; made when first needed
        self._waiting: Weights | None = None
        self._taken = False

    def __contains__(self, name: str) -> bool:
        return name in self._sets

    def keep(self, name: str) -> None:
        """Make ``name`` a copy of what the model holds now."""
        self._sets[name] = self._copied(self._sets.get(name))

    def load(self, name: str, folder: str) -> None:
        """Make ``name`` a copy of a Hugging Face folder's weights; the model holds afterwards what it held before.

        Raises:
            CheckpointError: weights are missing or have other shapes.
        """
        with self._policy_aside():
            self._model.load_hf(folder)
            self.keep(name)

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[None]:
        """The weights of ``name`` are in the model inside, the policy's again afterwards, to the bit."""
        weights = self._sets[name]
        with self._policy_aside():
            self._put(weights)
            yield

    # for checkpoints -----------------------------------------------------------------------------------------
    def tensors(self, name: str) -> Weights:
        """The copy itself (do not write to it)."""
        return self._sets[name]

    def put_tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make ``name`` a copy of what :meth:`tensors` gave.

        Raises:
            CheckpointError: they are not the weights of this rank's share.
        """
        mine = self._model.tensors()
        if mine.keys() != tensors.keys() or any(mine[key].shape != x.shape for key, x in tensors.items()):
            raise CheckpointError(f"the checkpoint's weights of {name!r} are not those of this model; start a new run")
        self._sets[name] = {key: self._room(mine[key]).copy_(x) for key, x in tensors.items()}

    # copies --------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _policy_aside(self) -> Iterator[None]:
        if self._taken:
            raise TrainerError("weights are swapped already; end one use of a weight set before the next")
        self._waiting = policy = self._copied(self._waiting)
        self._taken = True
        try:
            yield
        finally:
            self._put(policy)
            self._taken = False

    def _copied(self, into: Weights | None) -> Weights:
        inside = self._model.tensors()
        copies = into or {name: self._room(x) for name, x in inside.items()}
        for name, x in inside.items():
            copies[name].copy_(x, non_blocking=True)
        self._device.synchronize()
        return copies

    def _put(self, weights: Weights) -> None:
        for name, x in self._model.tensors().items():
            x.copy_(weights[name], non_blocking=True)
        self._device.synchronize()

    def _room(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self._device.pins_memory)
