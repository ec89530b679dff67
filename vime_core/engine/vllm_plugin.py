"""Entry point ``vllm.general_plugins``: vLLM calls ``register`` in every process of an engine.

It only enters a name into a table. The code behind the name, and the fixes of vLLM's gaps, arrive in the worker process
of an engine that was started with our weight transfer.
"""

from __future__ import annotations

from vime_core.engine.spec import TRANSFER_BACKEND


def register() -> None:
    """Idempotent, as vLLM asks of its plugins."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, "vime_core.engine.transfer", "VimeTransferEngine")
