"""Every error that vime raises on purpose.

A message says what happened, where (file:line, key, plugin, worker) and what to do, in one line. Code that catches
``VimeError`` may print ``str(error)`` to a user as it is; anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


class VimeError(Exception):
    """Base of all errors with a message meant for the user. ``exit_code`` is the command's exit status."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels between processes as it is, whatever its constructor takes."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[VimeError], arguments: tuple[Any, ...]) -> VimeError:
    error = kind.__new__(kind)
    error.args = arguments
    return error


class UsageError(VimeError):
    """The command line, a recipe or a plugin request is wrong; nothing has been started."""

    exit_code = 2


class ConfigError(UsageError):
    """One or several violations of the configuration, reported together.

    Args:
        violations: one line each.
    """

    def __init__(self, violations: str | Sequence[str]) -> None:
        self.violations = [violations] if isinstance(violations, str) else list(violations)
        super().__init__("\n".join(self.violations))


class PluginError(UsageError):
    """A plugin that was asked for cannot be used: plugin (distribution version) - hook or target - cause - fix."""


class DataError(VimeError):
    """A data set, row or prompt cannot be used. The message names file:line and key."""

    exit_code = 2


class RewardError(VimeError):
    """A reward function broke its contract (raised, returned None or a number that is not finite)."""


class EngineError(VimeError):
    """An inference engine, or the router in front of it, failed or did not answer in time."""


class SyncError(VimeError):
    """A weight sync did not commit. Engines serve the version they had, or nothing."""


class TrainerError(VimeError):
    """A trainer rank failed."""


class CheckpointError(VimeError):
    """A checkpoint is incomplete, of another layout, or not there."""


class DeadlineError(VimeError):
    """A wait ran past its deadline. The message names what was awaited and for how long."""


class Interrupted(VimeError):
    """The user or the system asked the run to end. ``exit_code`` is 130 for SIGINT and 143 for SIGTERM."""

    def __init__(self, signum: int) -> None:
        self.signal = signal.Signals(signum)
        self.exit_code = 128 + signum
        super().__init__(f"stopped by {self.signal.name}; checkpoints written so far are valid")


class TargetMissed(VimeError):
    """The run ended well but below the target that its recipe sets."""
