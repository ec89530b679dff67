"""``import emulated`` makes torch's device "npu" usable in this process; ``ranks`` runs a function in several."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import host_operators
import torch
import torch_npu  # noqa: F401

#: the replaced operators live as long as this does
OPERATORS = host_operators.install()
torch.npu.set_device(0)  # type: ignore[attr-defined]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ranks(code: str, world: int, *, timeout: float = 200.0, **environ: str) -> list[Any]:
    """What each of ``world`` processes printed last, from JSON. ``code`` sees ``rank``, ``world`` and ``emulated``.

    Raises:
        AssertionError: one of them failed; with the end of what it said.
    """
    begin = "import json, os, emulated, torch\nrank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", begin + code],
            env={**os.environ, **place, **environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, (_, error)) in enumerate(zip(processes, outputs)):
        assert process.returncode == 0, f"rank {rank}: {error[-3000:]}"
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]
