"""Warnings of any process of a run: one call, whatever process it is in.

They go through ``logging``, so that a library user without a run sees them on standard error. In a run
``vime_core.observe.WarningLog`` takes them to the run folder, and the driver to the terminal.
"""

from __future__ import annotations

import logging

#: of all warnings; those of libraries are not ours to show
LOGGER = "vime"


def warn(kind: str, text: str, error: BaseException | None = None) -> None:
    """Say something that a user should know, although the run goes on.

    Args:
        kind: what the same warning has in common when it comes again: the first of a kind is shown, all are counted.
        error: its traceback is kept.
    """
    logging.getLogger(LOGGER).warning("%s", text, exc_info=error, extra={"kind": kind})
