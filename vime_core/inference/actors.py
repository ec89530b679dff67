"""The Ray actors. Shells only: first the run's plugins, before anything heavy is imported, then the engine's body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.inference.spec import EngineSpec


def enter(lock: Sequence[Mapping[str, Any]], log: Path) -> None:
    """Where warnings go (beside the folder of ``log``), exactly the driver's plugins, and their process hooks."""
    from vime_core.observe import RunFolder, WarningLog
    from vime_core.plugin import Plugins

    WarningLog.attach(RunFolder(log.parent.parent).warnings, log.stem)
    Plugins.from_lock(lock).process_started("engine")


def direct_actor() -> type:
    """An actor class that holds vLLM in its own process."""
    from vime_core.inference.direct import DirectEngine

    class DirectActor(DirectEngine):
        def __init__(self, lock: Sequence[Mapping[str, Any]], spec: EngineSpec, log: Path) -> None:
            from vime_core.runtime import redirect_output

            redirect_output(log)
            enter(lock, log)
            super().__init__(spec, log)

    return DirectActor


def server_actor() -> type:
    """An actor class that runs a vLLM server beside it."""
    from vime_core.inference.server import ServerEngine

    class ServerActor(ServerEngine):
        def __init__(
            self, lock: Sequence[Mapping[str, Any]], spec: EngineSpec, log: Path, timeout: float, key: str
        ) -> None:
            enter(lock, log)
            super().__init__(spec, log, timeout, key)

    return ServerActor


def external_actor() -> type:
    """An actor class that speaks to a server which somebody else started."""
    from vime_core.inference.control import ServerControl

    return ServerControl
