"""Every hook of vime: the whole contract with plugins, on one page.

Hooks choose and announce; objects do the work. They run at process start, at run start and end, once a step, a sync and
a checkpoint; never for a sample, a tensor or a token. Each is called one plugin at a time, so an error always has an
owner, and wrappers are refused since there is nothing for them to wrap. A plugin takes only the arguments it wants. A
hook that takes minutes is broken off, and an answer other than the one described here is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from vime_core.algorithms import CorrectionFunction
    from vime_core.api import Algorithm, DeviceBackend, Environment, RolloutGenerator, Topology, WeightSync
    from vime_core.config import Config
    from vime_core.plugin import Options, Registry

#: name of the project in pluggy; the prefix of every hook is ``vime_``
PROJECT = "vime"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# registration: once a process, right after the plugin's import; strings and small functions only ------------------


@hookspec
def vime_register_device_backends(registry: Registry[type[DeviceBackend]]) -> None:
    """Add device backends. The available one of the highest priority runs where the user names none."""


@hookspec
def vime_register_weight_syncs(registry: Registry[type[WeightSync]]) -> None:
    """Add ways to carry weights from trainer to engines. ``vime_choose_weight_sync`` says when to use them."""


@hookspec
def vime_register_algorithms(registry: Registry[type[Algorithm]]) -> None:
    """Add algorithms. The user picks one by ``--advantage-estimator``."""


@hookspec
def vime_register_rollouts(registry: Registry[type[RolloutGenerator]]) -> None:
    """Add generators of rollouts. The user picks one by ``--rollout-function``."""


@hookspec
def vime_register_rewards(registry: Registry[Any]) -> None:
    """Add rewards: functions of a sample, or objects with ``score_group``. The user picks one by ``--reward``."""


@hookspec
def vime_register_environments(registry: Registry[type[Environment]]) -> None:
    """Add environments that a plugin's rollout generator acts in. One is created for each sample."""


@hookspec
def vime_register_filters(registry: Registry[Callable[..., Any]]) -> None:
    """Add filters of scored groups. The user picks one by ``--dynamic-sampling-filter-path``."""


@hookspec
def vime_register_corrections(registry: Registry[CorrectionFunction]) -> None:
    """Add off-policy corrections: functions ``(batch, advantage, *, options...) -> CorrectionResult``, see
    :mod:`vime_core.algorithms.correction`. The user picks one by ``--correction``."""


@hookspec
def vime_register_options(options: Options) -> None:
    """Add this plugin's options, a frozen dataclass. Each field is a flag ``--<plugin>-<field>`` and a TOML key."""


@hookspec
def vime_register_commands(registry: Registry[Callable[[list[str]], int]]) -> None:
    """Add commands ``vime <name>``. The target takes the arguments as they are and returns the exit status."""


# environment: an error here ends the run before an accelerator is touched -----------------------------------------


@hookspec
def vime_worker_environment(role: str, config: Config) -> Mapping[str, str] | None:
    """Before a process of ``role`` ("driver", "trainer", "engine", "rollout") is started. Returns variables that it
    needs before its first import; two plugins that want different values for one variable are an error."""


@hookspec
def vime_process_started(role: str) -> None:
    """First thing in every process, before torch is imported. The place for adaptors that patch; must be idempotent.
    A plugin that nobody asked for and that fails here is left out of the process, with a warning."""


@hookspec
def vime_configure(config: Config) -> None:
    """The configuration is final and nothing has been started. Raise ``ConfigError`` to refuse it."""


# choice: asked in turn, the last requested plugin first and the core last; the first answer counts ----------------


@hookspec(firstresult=True)
def vime_choose_weight_sync(topology: Topology) -> str | None:
    """Once a run, when the user names no sync. Returns the name of one that fits; None leaves it to others."""


# observation: results are ignored; a failing observer is logged once and counted, the run goes on -----------------


@hookspec
def vime_run_started(run: Any) -> None:
    """The run folder exists and everything is up. ``run`` is to be read, not written."""


@hookspec
def vime_step_finished(run: Any, step: int, metrics: Mapping[str, float]) -> None:
    """A step was trained. ``metrics`` are what the progress view and TensorBoard get."""


@hookspec
def vime_weights_synced(run: Any, version: int, seconds: float) -> None:
    """Every engine serves ``version``; its receipt was checked. ``seconds`` is wall time of the transaction."""


@hookspec
def vime_checkpoint_saved(run: Any, path: Path) -> None:
    """A checkpoint at ``path`` is complete. Copying it elsewhere belongs here."""


@hookspec
def vime_run_finished(run: Any, outcome: str) -> None:
    """The run is over, in every case, after everything was shut down. ``outcome`` is one word:
    "finished", "stopped" (by a signal) or "failed"; the report has the reason."""
