"""The device: which one a run would take and why, what its probe says, and the backend's own findings."""

from __future__ import annotations

from collections.abc import Iterator

from vime_cli.doctor.context import DeviceChoice, DoctorContext
from vime_core.api import DoctorFinding, PluginError
from vime_core.plugin import Device
from vime_core.runtime import run_python

#: seconds for a backend to look at its machine
DEADLINE = 60.0


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    """The device of the requested plugin, or of ``--device``, or the available one of the highest priority."""
    choice = context.choice
    if choice.provider is None or (choice.error and choice.able):
        yield DoctorFinding("device", False, choice.error, "choose one with --device")
    else:
        yield _chosen(choice.provider, choice)
        yield from _own(context, choice.provider)
    for provider in context.plugins.devices:
        if provider is not choice.provider:
            able, reason = provider.available()
            state = "available too" if able else "not available here"
            yield DoctorFinding(
                "others", True, f"{provider.qualified_name}: {state}{_first(reason)}", items=_lines(reason)
            )


def _chosen(provider: Device, choice: DeviceChoice) -> DoctorFinding:
    name, lines = provider.qualified_name, _lines(choice.reason)
    if not choice.able:
        detail = f"{name} cannot run here{_first(choice.reason)}"
        return DoctorFinding(
            "device", False, detail, "mend what it names, or choose another with --device", items=lines
        )
    try:
        provider.load()
    except PluginError as error:
        return DoctorFinding("device", False, str(error), "install what it names, or choose another with --device")
    return DoctorFinding("device", True, f"{name}{_first(choice.reason)}", items=lines)


def _own(context: DoctorContext, provider: Device) -> Iterator[DoctorFinding]:
    """The backend's findings, from a process of its own: a backend may import torch, and torch may not come up."""
    if context.backend() is None:
        return
    ended = run_python(["-m", "vime_cli.doctor.worker", "findings", context.worker_spec()], context.environ, DEADLINE)
    if ended.problem:
        fix = "mend what it names, or report it to the authors of the device's plugin"
        yield DoctorFinding("findings", False, f"{provider.qualified_name} could not look: {ended.problem}", fix)
        return
    for record in ended.answer():
        yield DoctorFinding(**{**record, "items": tuple(record["items"])})


def _lines(reason: str) -> tuple[str, ...]:
    return tuple(reason.splitlines())


def _first(reason: str) -> str:
    lines = _lines(reason)
    more = f" (and {len(lines) - 1} more reasons; --json lists them)" if len(lines) > 1 else ""
    return f": {lines[0]}{more}" if lines else ""
