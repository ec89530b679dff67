"""All checks in order: what each looks at, how long it may take, and what becomes of one that fails itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vime_cli.doctor import (
    device,
    disk,
    environment,
    imports,
    limits,
    link,
    plugins,
    ports,
    shared_memory,
    shims,
    versions,
)
from vime_cli.doctor.context import DoctorContext
from vime_core.api import DoctorFinding, UsageError
from vime_core.plugin import BLAMABLE, nearest, one_line

Look = Callable[[DoctorContext], Iterable[DoctorFinding]]


@dataclass(frozen=True)
class Check:
    """One check. ``deadline`` is in seconds, for all of it; what it found until then is kept."""

    name: str
    look: Look
    deadline: float = 30.0


#: in the order in which things should be mended
CHECKS = (
    Check("plugins", plugins.look),
    Check("versions", versions.look),
    Check("device", device.look, device.DEADLINE + 30),
    Check("imports", imports.look, 600.0),
    Check("shims", shims.look, shims.DEADLINE + 60),
    Check("link", link.look, link.DEADLINE + 60),
    Check("shared memory", shared_memory.look),
    Check("limits", limits.look),
    Check("ports", ports.look),
    Check("disk", disk.look),
    Check("environment", environment.look),
)
NAMES = tuple(check.name for check in CHECKS)


@dataclass(frozen=True)
class DoctorResult:
    """A finding of a check."""

    check: str
    finding: DoctorFinding


class Doctor:
    """Runs checks on a context, once. ``results`` is what was found so far."""

    def __init__(self, context: DoctorContext, checks: Sequence[Check] = CHECKS) -> None:
        self.context, self.checks = context, checks
        self.results: list[DoctorResult] = []

    def run(self) -> Iterator[DoctorResult]:
        """Each finding as soon as its check is through."""
        for check in self.checks:
            for finding in guarded(check, self.context):
                result = DoctorResult(check.name, finding)
                self.results.append(result)
                yield result

    def count(self, status: str) -> int:
        return sum(result.finding.status == status for result in self.results)

    @property
    def exit_code(self) -> int:
        """1 where something is broken, else 0."""
        return 1 if self.count("broken") else 0


def doctor_for(context: DoctorContext, only: Sequence[str] = (), model: Path | None = None) -> Doctor:
    """The checks that ``vime doctor`` was asked for.

    Args:
        only: names of checks; none stands for all. model: Hugging Face folder whose size the checks are to know.

    Raises:
        UsageError: no such check, or no such model folder.
    """
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise UsageError(f"no check '{unknown[0]}'{nearest(unknown[0], NAMES)}; there are: {', '.join(NAMES)}")
    if model is not None:
        context = replace(context, weights=weight_bytes(model))
    return Doctor(context, [check for check in CHECKS if not only or check.name in only])


def weight_bytes(folder: Path) -> int:
    """Bytes of a Hugging Face folder's weight files.

    Raises:
        UsageError: it has none.
    """
    total = sum(file.stat().st_size for file in folder.expanduser().glob("*.safetensors"))
    if not total:
        raise UsageError(f"--hf-checkpoint {folder}: no *.safetensors there; name a Hugging Face folder")
    return total


def guarded(check: Check, context: DoctorContext) -> list[DoctorFinding]:
    """What a check found; that it failed, or was too slow, is a finding too."""
    found: list[DoctorFinding] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for finding in check.look(context):
                found.append(finding)  # one by one: what was found before a failure is kept
        except BLAMABLE as error:
            failed.append(error)

    worker = threading.Thread(target=work, name=f"doctor {check.name}", daemon=True)
    worker.start()
    worker.join(check.deadline)
    ended = list(found)
    if worker.is_alive():
        return [*ended, _unseen(f"it did not end within {check.deadline:g} s")]
    return [*ended, *(_unseen(one_line(error)) for error in failed)]


def _unseen(why: str) -> DoctorFinding:
    fix = "mend what it names; if that is vime itself, report it with VIME_DEBUG=1"
    return DoctorFinding("check", False, f"could not be looked at: {why}", fix)
