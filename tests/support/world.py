"""A small world of installed plugins: real packages with real metadata in a folder on ``sys.path``."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from vime_core.plugin.plugins import PluginOutput, Plugins

_COUNT = itertools.count()
RANGE = ("vime-core>=0.1,<0.2",)
HEADER = "from vime_core import hookimpl\n"


class World:
    """Folder ``site`` holds the fake distributions, ``root`` is where commands run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "site"
        self.site.mkdir()
        self.warnings: list[str] = []
        self._prefix = f"w{next(_COUNT)}_"  # module names live as long as the test process

    @property
    def path(self) -> str:
        """PYTHONPATH of commands: what is installed here before what this process finds."""
        return os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH", "")]))

    def module(self, name: str) -> str:
        return self._prefix + name.replace("-", "_")

    def install(
        self,
        name: str,
        code: str = "",
        *,
        dist: str = "",
        version: str = "1.0",
        requires: Sequence[str] = RANGE,
        module: str = "",
    ) -> str:
        """Write a distribution with one plugin; returns the module of its entry point."""
        dist = dist or f"vime-{name}"
        package = module or self.module(dist.removeprefix("vime-"))
        self.write(f"site/{package}/__init__.py", "")
        self.write(f"site/{package}/plugin.py", HEADER + textwrap.dedent(code))
        info = f"site/{dist.replace('-', '_')}-{version}.dist-info"
        needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{needs}")
        self.write(f"{info}/entry_points.txt", f"[vime.plugins]\n{name} = {package}.plugin\n")
        return f"{package}.plugin"

    def write(self, path: str, text: str) -> Path:
        full = self.root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(textwrap.dedent(text))
        return full

    def load(self, *specs: str, autoload: bool = True, strict: bool = False, **environ: str) -> Plugins:
        """Load in this process. What the venv has installed besides is left out."""
        own = ["no:agents", "no:ascend", "no:cuda"]
        output = PluginOutput(warn=self.warnings.append)
        return Plugins.load([*specs, *own], autoload=autoload, strict=strict, environ=environ, output=output)

    def vime(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user would, in the folder ``root``."""
        return self.python("-m", "vime_cli.main", *argv, **environ)

    def python(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": self.path, **environ}
        return subprocess.run(
            [sys.executable, *argv], cwd=self.root, env=env, capture_output=True, text=True, timeout=120
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    _forget_files()  # files of one name in two tests are two files of one name in a process
    made = World(tmp_path)
    monkeypatch.syspath_prepend(str(made.site))
    monkeypatch.chdir(tmp_path)
    yield made
    _forget_files()


def _forget_files() -> None:
    for name in [name for name in sys.modules if name.startswith("vime_local_")]:
        del sys.modules[name]


@pytest.fixture
def names() -> Callable[[Plugins], list[str]]:
    return lambda plugins: [member.name for member in plugins.members]
