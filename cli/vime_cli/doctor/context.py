"""What doctor's checks are about: the plugins and device that were asked for, and the places that a run would use."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_cli.doctor.matrix import Matrix
from vime_core.api import PluginError
from vime_core.plugin import Device, PluginOutput, Plugins

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend


@dataclass(frozen=True)
class Loaded:
    """Plugins, the warnings of those that were skipped, and the error of the first requested one that failed."""

    plugins: Plugins
    warnings: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True)
class DeviceChoice:
    """A device, the answer of its probe, and the error of a run that would choose."""

    provider: Device | None
    able: bool
    reason: str
    error: str


@dataclass(frozen=True)
class DoctorContext:
    """Everything that a check may ask for.

    Attributes:
        specs: plugins, as ``--plugin`` takes them.
        device_name: as ``--device`` takes it, or None for the run's own choice.
        run_dir: folder in which runs lie.
        temp_dir: where processes keep sockets and temporary files.
        shm: folder of the file system in shared memory.
        ports: ports that the user means to give to a server.
        weights: bytes of the model's weight files; 0 where no model was named.
        environ: the environment that a run would be started in.
    """

    specs: tuple[str, ...] = ()
    device_name: str | None = None
    run_dir: Path = Path("runs")
    temp_dir: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    shm: Path = Path("/dev/shm")
    ports: tuple[int, ...] = ()
    weights: int = 0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    matrix: Matrix = field(default_factory=Matrix.packaged)

    @cached_property
    def loaded(self) -> Loaded:
        """The plugins as a run would load them. Where a requested one cannot be loaded: the core alone."""
        warnings: list[str] = []
        output = PluginOutput(warn=warnings.append)
        try:
            plugins = Plugins.load(self.specs, environ=self.environ, output=output)
            return Loaded(plugins, tuple(warnings))
        except PluginError as error:
            plugins = Plugins.load([], autoload=False, environ={}, output=output)
            return Loaded(plugins, tuple(warnings), str(error))

    @property
    def plugins(self) -> Plugins:
        return self.loaded.plugins

    @cached_property
    def choice(self) -> DeviceChoice:
        """The device that a run would take; where it would take none, the one that it was asked to take."""
        error = ""
        try:
            provider: Device | None = self.plugins.choose_device(self.device_name)
        except PluginError as raised:
            error = str(raised)
            asked = {member.name for member in self.plugins.members if member.requested}
            mine = [one for one in self.plugins.devices if one.plugin in asked]
            provider = max(mine, key=lambda one: one.priority, default=None)
        able, reason = provider.available() if provider else (False, "")
        return DeviceChoice(provider, able, reason, error)

    def backend(self) -> type[DeviceBackend] | None:
        """Class of the chosen device; None where it cannot be loaded, which the check of devices explains."""
        try:
            return self.choice.provider.load() if self.choice.provider else None
        except PluginError:
            return None

    def usable(self) -> type[DeviceBackend] | None:
        """The same, where that device is here and can do what a run asks of it."""
        return self.backend() if self.choice.able else None

    def worker_spec(self, **more: Any) -> str:
        """What a child process has to know to be like a worker of the run."""
        name = self.choice.provider.qualified_name if self.choice.provider else ""
        return json.dumps({"lock": self.plugins.lock(), "device": name, **more})
