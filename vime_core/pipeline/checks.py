"""The last checks before a process is started: the rules, with what only the loaded plugins and the files can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.config.sections import Config


def check_before_start(config: Config, plugins: Any) -> None:
    """Run every rule; values that still hold a placeholder are looked at again once it is filled.

    Raises:
        ConfigError: all violations together.
    """
