"""Entry point ``vllm.general_plugins``: vLLM calls ``register`` in every process of an engine, servers and workers.

It does something only in an engine that was started to get weights (its environment names a receiver): there it mends
what this vLLM lacks, each gap by a fix that is named and bound to versions.
"""

from __future__ import annotations

import os

from vime_core.weights import RECEIVER_VARIABLE


def register() -> None:
    """Idempotent, as vLLM asks of its plugins."""
    if RECEIVER_VARIABLE not in os.environ:
        return
    from vllm.platforms import current_platform

    from vime_core.inference.vllm.upstream_fixes import install_worker_fixes
    from vime_core.inference.vllm.version import prepare_vllm

    prepare_vllm()
    if current_platform.is_cpu():  # all of them are gaps of vLLM's CPU workers
        install_worker_fixes()
