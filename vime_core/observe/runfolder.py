"""The run folder: everything that a run leaves behind, in one place, readable without vime.

::

    config.toml          the resolved configuration, with the source of every value
    plugins.lock.json    the plugins that every process loaded
    metrics.jsonl        one line a step or evaluation
    receipts.jsonl       one line a weight sync: the whole receipt, with each engine's proof
    warnings.jsonl       what any process warned of: one line a kind, more with its count (see warning_log.py)
    samples/             step_000012.jsonl: the samples of a step
    loss/                step_000012.safetensors: what the step's loss was computed from (see loss_inputs.py)
    tensorboard/  checkpoints/  logs/
    report.txt           the summary

A folder belongs to one run and is never written over. Whole files appear atomically; lines are handed to the operating
system one by one, so that a killed run loses none that it had written.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.api import ConfigError, DataError
from vime_core.config import fill_text
from vime_core.observe.lines import Lines
from vime_core.observe.strict_json import dumps

if TYPE_CHECKING:
    from vime_core.api import Receipt

_FOLDERS = ("samples", "tensorboard", "logs")


class RunFolder:
    """Use :meth:`create` for a new run and :meth:`open` to read one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.receipts = path / "receipts.jsonl"
        self.warnings = path / "warnings.jsonl"
        self.report = path / "report.txt"
        self.samples = path / "samples"
        self.losses = path / "loss"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.logs = path / "logs"

    @classmethod
    def create(cls, path_template: str, name: str, now: datetime.datetime) -> RunFolder:
        """Make the folder of a new run.

        Args:
            path_template: path in which ``{name}`` and ``{time}`` are filled in; ``~`` is the home folder.
            name: name of the run; one part of a path.
            now: start of the run; ``{time}`` is ``YYYYmmdd-HHMMSS`` of it.

        Raises:
            ConfigError: template or name cannot be used, the folder belongs to another run, or cannot be made.
        """
        folder = cls(_fill(path_template, name, now))
        folder._claim()
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """An existing run's folder.

        Raises:
            DataError: there is none.
        """
        folder = cls(Path(path).absolute())
        if not folder.checkpoints.is_dir():
            raise DataError(f"{folder.path} is not the folder of a run: it has no checkpoints/")
        return folder

    def stage(self, name: str) -> RunFolder:
        """A folder of the same shape inside this one, for a run of several stages.

        Raises:
            ConfigError: as :meth:`create`.
        """
        _check_name(name)
        folder = RunFolder(self.path / name)
        folder._claim()
        return folder

    def _claim(self) -> None:
        """``checkpoints`` is made by exactly one process, so two runs cannot share a folder even if they race."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise FileExistsError
            self.checkpoints.mkdir()
            for part in _FOLDERS:
                (self.path / part).mkdir()
        except FileExistsError:
            raise ConfigError(
                f"run folder {self.path} is already in use; choose another --run-dir or --name "
                "({name} and {time} in --run-dir are filled in), or remove it"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"run folder {self.path} cannot be made: {error.strerror}; choose another --run-dir"
            ) from error

    # whole files ---------------------------------------------------------------------------------------------
    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the folder; a reader sees the old one or the new one, whole."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return target

    def samples_of(self, step: int) -> Path:
        return self.samples / f"step_{step:06d}.jsonl"

    def write_samples(self, step: int, rows: Iterable[Any]) -> Path:
        """Write the samples of a step, one a line: mappings or dataclasses. NaN (no log-prob) becomes null."""
        text = "".join(dumps(row)[0] + "\n" for row in rows)
        return self.write_text(str(self.samples_of(step).relative_to(self.path)), text)

    # lines ---------------------------------------------------------------------------------------------------
    def append_metrics(self, step: int, metrics: Mapping[str, Any]) -> int:
        """Add a line to ``metrics.jsonl``. Returns the count of values that were not finite; they are null in the
        line, and its key ``non_finite`` has the count."""
        return Lines(self.metrics).append({"step": step, **metrics})

    def append_receipt(self, receipt: Receipt) -> None:
        """Add a line to ``receipts.jsonl``."""
        Lines(self.receipts).append(vars(receipt))

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines of ``metrics.jsonl``.

        Raises:
            DataError: a line is not JSON.
        """
        return Lines(self.metrics).read()

    def read_receipts(self) -> list[dict[str, Any]]:
        """All lines of ``receipts.jsonl``, as :meth:`read_metrics`."""
        return Lines(self.receipts).read()

    def read_warnings(self) -> list[dict[str, Any]]:
        """All lines of ``warnings.jsonl``, as :meth:`read_metrics`."""
        return Lines(self.warnings).read()

    def series(self, name: str) -> list[tuple[int, float | None]]:
        """(step, value) of one metric, in the order written; None where it was not finite."""
        return [(row["step"], row[name]) for row in self.read_metrics() if name in row]


def _fill(template: str, name: str, now: datetime.datetime) -> Path:
    _check_name(name)
    text = fill_text(template, {"name": name, "time": now.strftime("%Y%m%d-%H%M%S")})
    if not text.strip():
        raise ConfigError("--run-dir is empty; give a path such as 'runs/{name}-{time}'")
    return Path(text).expanduser().absolute()


def _check_name(name: str) -> None:
    if not name.strip() or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
        raise ConfigError(f"--name {name!r} cannot be part of a path; use letters, digits, '-', '_' and '.'")
