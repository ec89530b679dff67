"""Weights through shared memory: trainer and engines on one machine.

The trainer's rank 0 writes into anonymous memory (:mod:`vime_core.weights.shared_buffer`), every worker of every engine
maps it. The bytes are copied once on the way.
"""

from __future__ import annotations

from vime_core.weights.transaction import TransactionalSync


class SharedMemorySync(TransactionalSync):
    """The receiver maps what the trainer wrote; the common transaction is all there is to do."""
