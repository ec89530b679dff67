"""A trainer rank's device memory in two parts that go to the host and come back each by itself: weights, and the rest.

The rest is what only training needs: gradients, which are dropped, and the optimizer's main parameters and moments. A
weight sync needs the weights alone, so it can run while the engines already have theirs. Copies of other models
(:mod:`vime_core.training.weight_swap`) are in host memory always and take no part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from vime_core.api import TrainerError

if TYPE_CHECKING:
    import torch

    from vime_core.api import DeviceBackend
    from vime_core.training.model import MegatronModel
    from vime_core.training.offload import Offload
    from vime_core.training.optimizer import Optimizer

#: "weights" is what a weight sync needs; "rest" is what only training does: gradients, main parameters, moments
Part = Literal["weights", "rest"]
PARTS: tuple[Part, ...] = ("weights", "rest")


class TrainerMemory:
    """Of the models that are trained on this rank, each with its optimizer. Nothing here is a collective."""

    def __init__(self, device: DeviceBackend, trained: Sequence[tuple[MegatronModel, Optimizer]]) -> None:
        from vime_core.training.offload import Offload  # the driver reads PARTS and has no torch

        self._device, self._trained = device, list(trained)
        self._offloads: dict[Part, Offload] = {
            part: Offload(device.empty_cache, pin=device.pins_memory) for part in PARTS
        }

    def offload(self, parts: Collection[Part] = PARTS) -> int:
        """Give up the memory of ``parts``; bytes given up by this call. A part that is away stays away.

        Not while gradients are wanted: between two training steps.
        """
        freed = 0
        self._device.synchronize()
        if "rest" in parts and not self._offloads["rest"].away:
            for _, optimizer in self._trained:
                optimizer.zero_grad()  # its own copies of gradients, which the next step makes anew
            freed += self._offloads["rest"].out(self._optimizer(), drop=self._gradients(), spare=self._weights())
        if "weights" in parts and not self._offloads["weights"].away:
            freed += self._offloads["weights"].out(self._weights())
        return freed

    def onload(self, parts: Collection[Part] = PARTS) -> int:
        """Take the memory of ``parts`` again, with its values; bytes taken. What is there stays as it is."""
        taken = sum(self._offloads[part].back() for part in PARTS if part in parts)
        self._device.synchronize()
        return taken

    def require(self, *parts: Part) -> None:
        """Raises TrainerError if one of ``parts`` is away: its tensors hold nothing."""
        away = [part for part in parts if self._offloads[part].away]
        if away:
            names = {"weights": "weights", "rest": "optimizer and gradients"}
            raise TrainerError(
                f"the trainer's {' and '.join(names[part] for part in away)} are in host memory while the engines have "
                "the device; the run has to bring them back first"
            )

    # what belongs to which part ------------------------------------------------------------------------------
    def _weights(self) -> Iterator[torch.Tensor]:
        return self._here(tensor for model, _ in self._trained for tensor in model.tensors().values())

    def _optimizer(self) -> Iterator[torch.Tensor]:
        """In float32 main parameters are the weights, or views of them; whoever offloads these spares those."""
        return self._here(tensor for _, optimizer in self._trained for tensor in optimizer.tensors().values())

    def _gradients(self) -> Iterator[torch.Tensor]:
        return self._here(tensor for model, _ in self._trained for tensor in model.gradients())

    def _here(self, tensors: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Those on the device: an optimizer may keep its own in host memory."""
        return (tensor for tensor in tensors if tensor.device.type == self._device.device_type)
