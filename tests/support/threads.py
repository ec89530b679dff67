"""Ends of one thing that wait for each other, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    """What each gave, or the error that it ended with; None where it has not ended in a minute."""
    results: list[Any] = [None] * len(work)

    def run(number: int) -> None:
        try:
            results[number] = work[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
