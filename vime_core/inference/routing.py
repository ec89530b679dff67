"""Experts that an engine chose while sampling, as they leave it.

A row is what one token was routed to: for every hidden layer the ids of its top-k experts, in the order of the
engine's top-k (layers without experts hold zeros). Tokens of prompt and response have a row each, except the last,
which the engine sampled and never ran. So a reply to a prompt of p tokens with L sampled ones has p + L - 1 rows, of
which those served from the prefix cache are the rows of the request that filled it.

vLLM returns them itself where its model runner V2 runs (``enable_return_routed_experts``). The same machinery is wired
to the other runner by :mod:`vime_core.inference.vllm.routing_scheduler` and
:mod:`vime_core.inference.vllm.routing_runner`.
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING

import numpy as np

from vime_core.api import EngineError

if TYPE_CHECKING:
    import numpy.typing as npt


def routing_from_text(id: str, text: str) -> npt.NDArray[np.integer]:
    """[rows, layers, topk] out of a server's answer: base64 of a ``.npy`` file.

    Raises:
        EngineError: it is something else.
    """
    try:
        return np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)
    except (ValueError, OSError, EOFError, binascii.Error) as error:
        raise EngineError(f"request {id}: the engine's routed experts cannot be read: {error}") from error
