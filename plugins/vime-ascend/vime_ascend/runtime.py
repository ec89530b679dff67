"""The only importer of torch_npu. What goes wrong there is a loader's error deep in torch; here it is a sentence."""

from __future__ import annotations

import importlib
from typing import Any

from vime_ascend.probe import look, missing
from vime_core.api import VimeError


def load() -> Any:
    """``torch.npu``.

    Raises:
        VimeError: it cannot be had on this machine; the message has a line for each thing that is missing.
    """
    try:
        importlib.import_module("torch_npu")
        return importlib.import_module("torch.npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise VimeError(explain(error)) from error


def explain(error: BaseException) -> str:
    """The failure and what is missing here."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lines = missing(look()) or ["everything that vime looks for is there; see npu-smi info and the log of CANN"]
    return "\n".join([f"torch_npu cannot be loaded: {first}", *(f"  {line}" for line in lines)])
