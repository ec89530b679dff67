"""vLLM before 0.32, which the published sets for NPUs have, made to look like the one that vime knows.

The core imports this module in every process of such an engine (``VIME_OLDER_VLLM`` names it).
"""

from __future__ import annotations

#: what gives its server the routes for token ids
SERVER_FLAGS = ("--middleware", "vime_ascend.older_vllm.routes.OlderRoutes")


def install() -> None:
    """Weight versions in the outputs of this process's engines; idempotent."""
    from vime_ascend.older_vllm.labels import install as label

    label()
