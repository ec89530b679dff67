"""A vime plugin that makes a run take turns: it waits for a line on standard input before each step.

So two programs can be measured step by step beside each other, never at the same time. Load it with
``--plugin benchmarks/turns.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from vime_core.hookspecs import hookimpl

MARK = "@@answer "


@hookimpl
def vime_run_started(run: Any) -> None:
    sys.stdin.readline()


@hookimpl
def vime_step_finished(run: Any, step: int, metrics: Mapping[str, float]) -> None:
    print(MARK + json.dumps(dict(metrics)), flush=True)
    sys.stdin.readline()
