"""An interpreter with vime-core and what it depends on by itself, and nothing else: no torch, vLLM, Ray, Megatron."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


class Bare:
    """Packages are links in ``site``; the interpreter is the one that this environment was made from."""

    def __init__(self, site: Path) -> None:
        self.site = site
        for dist in closure("vime-core", set()):
            for name in {Path(str(file)).parts[0] for file in dist.files or () if ".." not in str(file)}:
                place = Path(str(dist.locate_file(name)))
                if place.exists() and not name.endswith(".pth") and name != "__pycache__":
                    (site / name).symlink_to(place)

    def vime(self, *argv: object, cwd: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        path = f"{self.site}:{ROOT}:{ROOT / 'cli'}"
        command = [getattr(sys, "_base_executable", sys.executable), "-m", "vime_cli.main", *map(str, argv)]
        env = {"PYTHONPATH": path, "PYTHONNOUSERSITE": "1", **environ}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def closure(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """A distribution and everything it requires, without extras."""
    if name.lower() in seen:
        return
    seen.add(name.lower())
    dist = metadata.distribution(name)
    yield dist
    for requirement in map(Requirement, dist.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from closure(requirement.name, seen)


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    site = tmp_path / "bare"
    site.mkdir()
    return Bare(site)
