"""Which hook was called, of which plugin, and how long it took: counted always, printed where a run asks for it.

``--trace-hooks`` (VIME_TRACE_HOOKS=1) prints a line a call on the driver's stderr. Workers call
``vime_process_started`` and ``vime_configure`` once each and print nothing. Hooks are called a handful of times a step,
so counting is free.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


def trace_on_stderr(hook: str, plugin: str, milliseconds: float) -> None:
    """``trace: vime_step_finished of plugin 'plots' took 0.041 ms``"""
    print(f"trace: {hook} of plugin '{plugin}' took {milliseconds:.3f} ms", file=sys.stderr, flush=True)


class HookTrace:
    """Wraps calls of hooks.

    Args:
        write: called with hook, plugin and milliseconds after each call, whether it returned or raised; None: nobody.
    """

    def __init__(self, write: Callable[[str, str, float], None] | None = None) -> None:
        self._write = write
        #: (hook, plugin) -> calls
        self.calls: Counter[tuple[str, str]] = Counter()

    def around(self, call: Callable[..., Any], hook: str, plugin: str) -> Callable[..., Any]:
        """``call``, counted and timed."""

        def traced(**arguments: Any) -> Any:
            self.calls[hook, plugin] += 1
            if self._write is None:
                return call(**arguments)
            began = time.perf_counter()
            try:
                return call(**arguments)
            finally:
                self._write(hook, plugin, (time.perf_counter() - began) * 1e3)

        return traced
