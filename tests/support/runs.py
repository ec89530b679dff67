"""Real runs of the ``vime`` command, as a user starts them, with nothing left behind.

    with Run(tmp_path, "train", "recipe.toml") as run:
        done = run.finish()
        assert done.code == 0, done.text

Every process of the run is known through its keeper (see keeper.py), so :meth:`Run.processes` is complete whatever the
processes do, and leaving the block kills what is left.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.keeper import descendants

KEEPER = Path(__file__).with_name("keeper.py")
#: seconds that a whole run may take on a busy machine, and that its processes may take to end after the driver
DEADLINE, ENDING = 280.0, 20.0
_POLL = 0.1


@dataclass(frozen=True)
class Done:
    """How a command ended. ``left`` are the processes that were still there ``ENDING`` seconds later, ``litter`` what
    lay in its temporary folder then."""

    code: int
    out: str
    err: str
    seconds: float
    left: dict[int, str]
    litter: list[str]

    @property
    def text(self) -> str:
        """Everything it said, for the message of a failed assertion."""
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out[-6000:]}\n{self.err[-6000:]}"

    @property
    def complaints(self) -> list[str]:
        """What the user is told is wrong."""
        return [line.removeprefix("vime: ") for line in self.err.splitlines() if line.startswith("vime: ")]


class Run:
    """One ``vime`` command in ``folder``, in a process group of its own; started at once."""

    def __init__(self, folder: Path, *arguments: object, **environ: str) -> None:
        self.folder = folder
        number = len(list(folder.glob("*.status")))
        self._status, self._out, self._err = (folder / f"command{number}.{part}" for part in ("status", "out", "err"))
        command = [sys.executable, KEEPER, self._status, sys.executable, "-m", "vime_cli.main", *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VIME_", "RAY_"))}
        # a short path: it will hold sockets
        self._temporary = tempfile.mkdtemp(prefix="vt-", dir="/tmp")
        compiled = str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
        clean |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": self._temporary}
        clean.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)
        self.started = time.time()
        with open(self._out, "w") as out, open(self._err, "w") as err:
            self._keeper = subprocess.Popen(
                list(map(str, command)), cwd=folder, env=clean | environ, stdin=subprocess.PIPE, stdout=out, stderr=err
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeper.communicate()  # the end of its input is the keeper's sign to kill what is left
        shutil.rmtree(self._temporary, ignore_errors=True)

    # while it runs -------------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        """Of the driver, which leads the process group of the run."""
        until(lambda: self._status.exists(), 10, "the keeper has started nothing")
        return int(self._status.read_text().split()[0])

    @property
    def ended(self) -> bool:
        return self._status.exists() and len(self._status.read_text().split()) > 1

    def processes(self) -> dict[int, str]:
        """Process id -> title of everything that the run has started and that lives."""
        return descendants(self._keeper.pid)

    def signal(self, number: signal.Signals, group: bool = False) -> None:
        """To the driver alone (``kill``), or to its group (Ctrl-C in a terminal)."""
        (os.killpg if group else os.kill)(self.pid, number)

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
        """Until ``condition`` holds; fails at once when the run ends before."""

        def look() -> bool:
            met = bool(condition())
            assert met or not self.ended, f"{what}: the run ended before\n{self.said()}"
            return met

        until(look, seconds, what)

    def wait_until_gone(self, seconds: float = ENDING) -> None:
        """Until nothing of the run is left, the driver included."""
        until(lambda: not self.processes(), seconds, "something of the run is left")

    @property
    def temporary(self) -> Path:
        return Path(self._temporary)

    @property
    def litter(self) -> list[str]:
        """What lies in the run's temporary folder."""
        return sorted(os.listdir(self._temporary))

    def said(self) -> str:
        return f"{self._out.read_text()[-6000:]}\n{self._err.read_text()[-6000:]}"

    # to the end ----------------------------------------------------------------------------------------------
    def finish(self, seconds: float = DEADLINE) -> Done:
        """Wait for the driver, then for everything else of the run, at most ``ENDING`` seconds."""
        until(lambda: self.ended, seconds, f"the run did not end: {self.processes()}\n{self.said()}")
        _, code, at = self._status.read_text().split()
        end = time.monotonic() + ENDING
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(_POLL)
        out, err = self._out.read_text(), self._err.read_text()
        return Done(int(code), out, err, float(at) - self.started, left, self.litter)


def forgetful(folder: Path, *streams: str) -> str:
    """A rollout, for ``--rollout-function`` of a run in ``folder``, that loses these streams of every sample."""
    (folder / "forgetful.py").write_text(
        "from vime_core.rollout.generate import Generate\n"
        "class Forgetful(Generate):\n"
        "    async def generate(self, samples, client, params):\n"
        "        done = await super().generate(samples, client, params)\n"
        "        for sample in done:\n"
        f"            sample.streams = {{s: x for s, x in sample.streams.items() if s.name not in {streams}}}\n"
        "        return done\n"
    )
    return "forgetful.py:Forgetful"


def vime(folder: Path, *arguments: object, **environ: str) -> Done:
    """Run a command to its end."""
    with Run(folder, *arguments, **environ) as run:
        return run.finish()


def until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """A wait with a deadline; ``what`` is the message when it is over."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} (waited {seconds:g} s)"
        time.sleep(_POLL)


def flags(**options: object) -> list[str]:
    """``flags(lr=1, bf16=True, prompt_data=[a, b])`` as they are typed."""
    typed: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            typed.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            typed += [flag, *map(str, value if isinstance(value, list) else [value])]
    return typed


def two_steps(task: Mapping[str, str], **more: object) -> list[str]:
    """Flags of a GRPO run of two steps, 2 prompts x 2 samples, on the task of ``quickstart.addition.prepare``; without
    a reward. ``more``: options that are added or take the place of these."""
    options: dict[str, object] = {
        "run_dir": "run",
        "hf_checkpoint": task["model"],
        "prompt_data": task["train"],
        "input_key": "prompt",
        "label_key": "answer",
        "rollout_max_response_len": 4,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "num_rollout": 2,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 512,
        "use_tensorboard": False,
        "vllm_dtype": "float32",
        "vllm_max_model_len": 64,
        "vllm_max_num_seqs": 16,
    }
    return flags(**{**options, **more})


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def step_rows(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` that are of training steps, in order."""
    return [row for row in json_lines(folder / "metrics.jsonl") if "rollout/step" in row]


def write_lines(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
