"""This machine's speed in two numbers, measured in about two seconds: matrix products and copies in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: seconds that each measurement goes on
_SECONDS = 0.8
_SIZE = 1024


@dataclass(frozen=True)
class Calibration:
    """flops: of matrix products of 1,024 x 1,024 in ``dtype``, a second, with ``threads`` threads. copy: bytes that a
    copy in memory moves a second."""

    flops: float
    copy: float
    dtype: str
    threads: int


def calibrate(dtype: str, device: Any, threads: int) -> Calibration:
    """Measure on the device (a ``DeviceBackend``); imports torch. dtype: "float32" or "bfloat16"."""
    import torch

    torch.set_num_threads(threads)
    kind, place = getattr(torch, dtype), device.torch_device()
    left, right = (torch.randn(_SIZE, _SIZE, device=place).to(kind) for _ in range(2))
    source = torch.zeros(1 << 26, dtype=torch.uint8, device=place)
    target = torch.empty_like(source)
    products = _rate(lambda: torch.mm(left, right), device.synchronize)
    copies = _rate(lambda: target.copy_(source), device.synchronize)
    return Calibration(products * 2 * _SIZE**3, copies * source.numel(), dtype, threads)


def _rate(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Calls a second, the best of several rounds, so that other work on the machine counts less."""
    work()
    wait()
    best, end = 0.0, time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(4):
            work()
        wait()
        best = max(best, 4 / (time.perf_counter() - started))
    return best
