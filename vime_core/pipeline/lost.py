"""What an error of a run leaves out: whoever waits for an engine knows its address at best, so the driver looks which
of them are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vime_core.api import DeadlineError, EngineError, SyncError

if TYPE_CHECKING:
    from vime_core.inference import EngineGroup


@contextlib.contextmanager
def naming_the_lost(engines: EngineGroup | None) -> Iterator[None]:
    """Where an engine or the router is gone, the error that this led to ends with its name, its log and the first error
    in it."""
    try:
        yield
    except (EngineError, SyncError, DeadlineError) as error:
        lost = engines.lost() if engines is not None else []
        new = [line for line in lost if line not in str(error)]
        if new:
            raise type(error)("\n".join([str(error), *new])) from error
        raise
