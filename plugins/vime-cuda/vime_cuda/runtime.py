"""``torch.cuda``, or a sentence that says why there is none. torch itself raises an assertion deep in its own code."""

from __future__ import annotations

from typing import Any

from vime_core.api import VimeError
from vime_cuda.probe import look, missing


def load() -> Any:
    """``torch.cuda`` with at least one device.

    Raises:
        VimeError: it cannot be had on this machine; the message has a line for each thing that is missing.
    """
    import torch

    if not torch.cuda.is_available():
        raise VimeError(explain())
    return torch.cuda


def explain() -> str:
    lines = missing(look()) or ["everything that vime looks for is there; see nvidia-smi and the kernel's log"]
    return "\n".join(["torch finds no CUDA device", *(f"  {line}" for line in lines)])
