"""Weights over TCP by gloo: trainer and engines anywhere."""

from __future__ import annotations

from typing import ClassVar

from vime_core.weights.transaction import TransactionalSync


class GlooSync(TransactionalSync):
    """The same bytes, broadcast in buckets."""

    supports_multi_node: ClassVar[bool] = True
