"""Which modules Megatron builds its layers of: Transformer Engine's, or plain torch ones under the same names.

Megatron binds Transformer Engine's names when its modules are imported, and goes on without a word where that import
fails. So the choice is made, and checked, before a model is built.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Literal

from vime_core.api import VimeError
from vime_cuda.versions import INSTALL_ENGINE

#: module that Megatron builds its layers in -> the provider that it must have bound
SPECS = "megatron.core.models.gpt.gpt_layer_specs"
PROVIDER = "TESpecProvider"


def chosen(option: str) -> Literal["te", "plain"]:
    """The layers of a run by ``--cuda-trainer``. Imports nothing."""
    if option == "auto":
        return "te" if find_spec("transformer_engine") is not None else "plain"
    return "te" if option == "te" else "plain"


def require_transformer_engine() -> None:
    """Transformer Engine can be imported, and Megatron has taken it.

    Raises:
        VimeError: one of the two does not hold.
    """
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise VimeError(
            f"Transformer Engine cannot be imported: {first}; {INSTALL_ENGINE} beside this torch, or uninstall it and "
            "use --cuda-trainer plain"
        ) from error
    if not hasattr(importlib.import_module(SPECS), PROVIDER):
        raise VimeError(
            f"{SPECS} has no {PROVIDER} although Transformer Engine is here: Megatron could not import all that it "
            "needs of it; install the release that this megatron-core was made for, or use --cuda-trainer plain"
        )
