"""A run: its stages one after another, each from what the ones before left behind."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.config import fill
from vime_core.observe import RunFolder, make_progress, render
from vime_core.pipeline.checks import check_before_start
from vime_core.pipeline.prepare import prepare
from vime_core.pipeline.stage import StageRun
from vime_core.runtime import Interrupts

if TYPE_CHECKING:
    from vime_core.config import Config, ResolvedRun


def run_plan(resolved: ResolvedRun, plugins: Any) -> int:
    """Run all stages; 0 when every one ended well and reached its target.

    Raises:
        VimeError: the run failed, was stopped, or missed a target; ``exit_code`` is the command's.
    """
    for stage in resolved.stages:
        check_before_start(stage.config, plugins)
    first = resolved.stages[0].config.run
    with Interrupts() as stop:
        folder = RunFolder.create(first.run_dir, first.name, datetime.datetime.now())
        several = len(resolved.stages) > 1
        values: dict[str, str] = {}
        if first.prepare:
            made = prepare(first.prepare, folder.path / "prepared", first.seed)
            values |= {f"prepared.{key}": value for key, value in made.items()}
        for stage in resolved.stages:
            stop.check()
            place = folder.stage(stage.name) if several else folder
            config = _settled(fill(stage.config, {**values, "run": str(place.path)}), plugins)
            check_before_start(config, plugins)
            plugins.configure(config)
            progress = make_progress(config.observe.progress, sys.stdout)
            summary = StageRun(stage.name, config, place, plugins, progress, stop).run()
            print(render(summary), end="", flush=True)
            values |= _left_behind(stage.name, place.path, config.model.save_hf)
    return 0


def _settled(config: Config, plugins: Any) -> Config:
    """With the device's name, so that plugins can tell whose run this is."""
    return config.replace("cluster", device=plugins.choose_device(config.cluster.device).qualified_name)


def _left_behind(name: str, path: Path, export: str | None) -> dict[str, str]:
    """Placeholders that later stages may use."""
    values = {f"stages.{name}.run": str(path)}
    if export:
        values[f"stages.{name}.hf"] = export
    return values
