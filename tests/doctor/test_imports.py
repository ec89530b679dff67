"""Packages whose import fails, crashes or hangs, installed for real in a folder on the path."""

from __future__ import annotations

from pathlib import Path

from vime_cli.doctor import imports
from vime_cli.doctor.context import DoctorContext

from vime_core.api.device import DoctorFinding

CRASH = "import os, sys\nprint('loading libgpu.so', file=sys.stderr, flush=True)\nos.abort()\n"
CAUSED = """
try:
    raise OSError("libhccl.so: cannot open shared object file: No such file or directory")
except OSError as error:
    raise ImportError("the engine does not come up") from error
"""


def package(world, name: str, code: str) -> None:
    world.write(f"site/{name}.py", code)
    world.write(f"site/{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


def look(name: str, deadline: float = 60.0) -> DoctorFinding:
    (found,) = imports.look(DoctorContext(), {name: (name,)}, deadline)
    return found


def test_an_import_that_raises_is_told_with_its_cause(world) -> None:
    package(world, "broken_engine", CAUSED)
    found = look("broken_engine")
    assert found.status == "broken"
    assert found.detail == (
        "import broken_engine: ImportError: the engine does not come up <- OSError: libhccl.so: cannot open shared "
        "object file: No such file or directory"
    )
    assert found.fix == "pip install --force-reinstall --no-deps broken_engine==1.0, or what it names"


def test_an_import_that_ends_the_interpreter_is_a_finding_with_its_last_line(world) -> None:
    package(world, "crashing", CRASH)
    found = look("crashing")
    assert found.status == "broken"
    assert found.detail == "import crashing: crashed with SIGABRT; its last line: loading libgpu.so"


def test_an_import_that_hangs_is_killed_with_what_it_started(world) -> None:
    package(
        world,
        "hanging",
        "import os, subprocess, time\nfrom pathlib import Path\nchild = subprocess.Popen(['sleep', '600'])\n"
        "Path('pids').write_text(f'{os.getpid()} {child.pid}')\ntime.sleep(600)\n",
    )
    found = look("hanging", deadline=1.5)
    assert (found.status, found.detail) == ("broken", "import hanging: did not end within 1.5 s")
    for pid in (world.root / "pids").read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_what_is_not_installed_is_left_to_the_check_of_versions() -> None:
    assert list(imports.look(DoctorContext(), {"nowhere": ("nowhere",)})) == []


def test_two_packages_share_neither_fate_nor_line(world) -> None:
    package(world, "crashing", CRASH)
    package(world, "fine", "x = 1\n")
    found = list(imports.look(DoctorContext(), {"crashing": ("crashing",), "fine": ("fine",)}))
    assert [(one.name, one.status) for one in found] == [("crashing", "broken"), ("fine", "ok")]


def test_torch_that_fails_by_a_device_that_it_loads_by_itself(world) -> None:
    """As torch_npu without CANN: torch's own loader of extensions, real torch, an extension that cannot be imported."""
    package(world, "torch_abacus", CAUSED)
    world.write("site/torch_abacus-1.0.dist-info/entry_points.txt", "[torch.backends]\nabacus = torch_abacus:load\n")
    (found,) = imports.look(DoctorContext(), {"torch": ("torch",)})
    assert found.status == "broken"
    assert found.detail.startswith("torch can be imported, but not with torch_abacus, which it loads by itself: ")
    assert "libhccl.so" in found.detail
    assert "source its set_env.sh" in found.fix
    assert found.fix.endswith("or export TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use torch without it")
