"""The engine's end of bench_weight_sync.py: maps and verifies versions, and loads none.

The first question says where to meet, each further one announces a version. Two answers to each of those: it listens,
it has all of it.
"""

from __future__ import annotations

import torch
from common import answer, questions

from vime_core.weights import HostReceiver


def main() -> None:
    torch.set_num_threads(1)
    receiver, asked = HostReceiver(), questions()
    terms = next(asked)
    answer("ready")
    for question in asked:
        answer("listening")
        incoming = receiver(question["version"], terms, 1, lambda entries, complete: None)
        answer("taken")
        incoming.abandon()
    receiver.close()


if __name__ == "__main__":
    main()
