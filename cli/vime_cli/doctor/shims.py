"""Shims: what is mended of megatron-core and of vLLM from outside, each bound to the versions it was written for."""

from __future__ import annotations

from collections.abc import Iterator

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.packages import installed_version
from vime_cli.doctor.versions import ENGINES
from vime_core.api import DoctorFinding
from vime_core.runtime import run_python

#: seconds for megatron to be imported and adapted
DEADLINE = 240.0


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    """Those of megatron are really applied, in a trainer's process; those of vLLM are compared with its version."""
    yield _megatron(context)
    version = next(filter(None, map(installed_version, ENGINES)), None)
    if version is None:
        yield DoctorFinding("vllm", True, "not looked at: vLLM is not installed", warns=True)
        return
    from vime_core.inference import fixes

    for fix in fixes():
        applies = fix.applies(version)
        detail = f"{fix.name}: {fix.what}" + ("" if applies else f"; not mended for vLLM {version}")
        seen = (
            "" if applies else f"install vLLM >= {fix.since}, < {fix.until}, unless that version has mended it itself"
        )
        yield DoctorFinding("vllm", True, detail, seen, warns=not applies)


def _megatron(context: DoctorContext) -> DoctorFinding:
    backend, version = context.usable(), installed_version("megatron-core")
    if backend is None or version is None:
        lacking = "megatron-core is not installed" if backend else "there is no device"
        return DoctorFinding("megatron", True, f"not looked at: {lacking}", warns=True)
    environ = {**context.environ, **backend().environment("trainer")}
    ended = run_python(["-m", "vime_cli.doctor.worker", "shims", context.worker_spec()], environ, DEADLINE)
    if ended.problem:
        what = f"megatron-core {version} cannot be adapted to the device: {ended.problem}"
        return DoctorFinding("megatron", False, what, "install the release of megatron-core that the tested set names")
    names = tuple(ended.answer())
    modules = {name.partition(":")[0] for name in names}
    detail = f"megatron-core {version}: {len(names)} changes in {len(modules)} modules; --json lists them"
    return DoctorFinding("megatron", True, detail, items=names)
