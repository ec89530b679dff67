"""Weights through shared memory: trainer and engines on one machine."""

from __future__ import annotations

from vime_core.weights.transaction import TransactionalSync


class SharedMemorySync(TransactionalSync):
    """The receiver maps what the trainer wrote."""
