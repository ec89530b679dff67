"""Calling hooks: one plugin at a time, with a deadline, and with a look at every answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pluggy

from vime_core.api import ConfigError
from vime_core.plugin.border import hook_answer_fault
from vime_core.plugin.messages import BLAMABLE, one_line
from vime_core.plugin.tracing import HookTrace
from vime_core.plugin.validation import LoadedPlugin
from vime_core.runtime import time_limit

#: seconds that a hook may take; observers may copy a checkpoint
_ASKED, _OBSERVING = 120.0, 3600.0


class HookError(Exception):
    """A hook raised, or gave a wrong answer. The text has no plugin in it: the caller knows whose it is."""


class HookCalls:
    """The hooks of loaded plugins."""

    def __init__(self, manager: pluggy.PluginManager, trace: HookTrace) -> None:
        self._manager, self._trace = manager, trace

    def ask(self, hook: str, plugin: object, **arguments: Any) -> Any:
        """The answer of one plugin (None where it has none).

        Raises:
            HookError: it raised, took too long, or the answer is none that the hook may give.
            ConfigError: ``vime_configure`` refuses the configuration.
        """
        seconds = _OBSERVING if hook in _OBSERVERS else _ASKED
        try:
            with time_limit(seconds, "it"):
                answer = self._call(hook, plugin, arguments)
        except BLAMABLE as error:
            if isinstance(error, ConfigError) and hook == "vime_configure":
                raise
            raise HookError(f"{hook}: {one_line(error)}") from error
        wrong = "" if hook in _OBSERVERS else hook_answer_fault(hook, answer)
        if wrong:
            raise HookError(f"{hook}: {wrong}")
        return answer

    def implementing(self, hook: str, members: Sequence[LoadedPlugin]) -> Iterator[LoadedPlugin]:
        """In pluggy's order: the last loaded first, those marked ``trylast`` at the end."""
        by_plugin = {id(member.plugin): member for member in members}
        for implementation in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            yield by_plugin[id(implementation.plugin)]

    def _call(self, hook: str, plugin: object, arguments: dict[str, Any]) -> Any:
        """The hook of one plugin alone, through pluggy, which passes only the arguments it takes."""
        others = [other for other in self._manager.get_plugins() if other is not plugin]
        caller = self._manager.subset_hook_caller(hook, others)
        answer = self._trace.around(caller, hook, self._manager.get_name(plugin) or "")(**arguments)
        if caller.spec is not None and caller.spec.opts.get("firstresult"):
            return answer
        return answer[0] if answer else None  # one plugin gives one answer or none


_OBSERVERS = frozenset(
    {"vime_run_started", "vime_step_finished", "vime_weights_synced", "vime_checkpoint_saved", "vime_run_finished"}
)
