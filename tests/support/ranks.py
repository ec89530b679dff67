"""Scripts whose ranks are real processes: start one and read its result; inside, start the ranks and print theirs."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_MARK = "RESULT "


def result_of(module: str, *arguments: str, seconds: float = 280.0) -> Any:
    """What ``python -m module arguments`` printed by :func:`tell`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    results = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    assert results, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(results[0].removeprefix(_MARK))


def tell(result: Any) -> None:
    """Print the script's result."""
    print(_MARK + json.dumps(result), flush=True)


def run_ranks(target: Callable[..., None], world: int, *arguments: Any, seconds: float = 240.0) -> None:
    """``target(rank, world, *arguments, queue)`` in a process a rank; tell what one of them put into the queue."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=target, args=(rank, world, *arguments, answers), daemon=True) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    tell(_answer(ranks, answers, seconds))
    for process in ranks:
        process.join(60)


def _answer(ranks: Sequence[Any], answers: Any, seconds: float) -> Any:
    """What a rank says; an error as soon as one has ended badly, for the others would wait for it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return answers.get(timeout=1.0)
        except queue.Empty:
            broken = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode}
            if broken:
                raise RuntimeError(f"ended without an answer: rank and exit status {broken}") from None
    raise TimeoutError(f"no rank answered in {seconds:.0f} s")
