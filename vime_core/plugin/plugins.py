"""The plugins of one process: loaded once, then frozen, with a typed method for every hook.

``Plugins.load`` finds and loads them in the driver, ``Plugins.from_lock`` loads exactly the driver's in a worker. What
registers is in the registries; what is announced goes through the methods below. Policy: a plugin that cannot be
loaded, or fails as a process starts, is left out with a warning unless it was asked for; an error in an environment,
configure or choice hook ends the run; an observer's is a warning and counted, since a plotting plugin must not end a
run of three days. ``strict`` raises in every case.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from vime_core import hookspecs
from vime_core.api import ConfigError, DeadlineError, PluginError
from vime_core.plugin import discovery, kinds, loading, lock, selection
from vime_core.plugin.hook_calls import HookCalls, HookError
from vime_core.plugin.loading import LoadPlan
from vime_core.plugin.options import Options
from vime_core.plugin.registry import CORE, Provider, Registry
from vime_core.plugin.tracing import HookTrace
from vime_core.plugin.validation import LoadedPlugin, hooks_of, validate
from vime_core.runtime import time_limit, warn

if TYPE_CHECKING:
    from vime_core.algorithms import CorrectionFunction
    from vime_core.api import Algorithm, DeviceBackend, Environment, RolloutGenerator, Topology, WeightSync
    from vime_core.config import Config


def warn_on_stderr(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)


@dataclass(frozen=True)
class PluginOutput:
    """Where lines about plugins go.

    Attributes:
        warn: called with one line for each plugin that was skipped.
        trace: called with hook, plugin and milliseconds after each call of a hook; None: nobody.
    """

    warn: Callable[[str], None] = warn_on_stderr
    trace: Callable[[str, str, float], None] | None = None


#: warnings alone
ON_STDERR = PluginOutput()


def _interface(target: str) -> kinds.Shape:
    return kinds.subclass_of(f"vime_core.api.{target}")


class Plugins:
    """A frozen set of loaded plugins. Build it with ``load`` or ``from_lock``."""

    def __init__(self, plans: Sequence[LoadPlan], *, strict: bool = False, output: PluginOutput = ON_STDERR) -> None:
        requested = [plan.owner.name for plan in plans if plan.requested]
        self.devices: Registry[type[DeviceBackend]]
        self.weight_syncs: Registry[type[WeightSync]]
        self.algorithms: Registry[type[Algorithm]]
        self.rollouts: Registry[type[RolloutGenerator]]
        self.rewards: Registry[Any]
        self.environments: Registry[type[Environment]]
        self.filters: Registry[Callable[..., Any]]
        self.corrections: Registry[CorrectionFunction]
        self.commands: Registry[Callable[[list[str]], int]]
        self.devices = Registry("device backend", _interface("device:DeviceBackend"), requested)
        self.weight_syncs = Registry("weight sync", _interface("weight_sync:WeightSync"), requested)
        self.algorithms = Registry("algorithm", _interface("algorithm:Algorithm"), requested)
        self.rollouts = Registry("rollout", _interface("rollout:RolloutGenerator"), requested)
        self.rewards = Registry("reward", kinds.is_reward, requested)
        self.environments = Registry("environment", _interface("environment:Environment"), requested)
        self.filters = Registry("filter", kinds.is_callable, requested)
        self.corrections = Registry("correction", kinds.is_correction, requested)
        self.commands = Registry("command", kinds.is_callable, requested)
        self.options = Options()
        #: (plugin, hook) -> times it failed, of the observation hooks
        self.observer_failures: Counter[tuple[str, str]] = Counter()
        self.trace = HookTrace(output.trace)
        self.strict = strict
        self._warn = output.warn
        self._requested = requested
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._hooks = HookCalls(self._manager, self.trace)
        self._members: list[LoadedPlugin] = []
        for plan in plans:
            self._load_one(plan)

    @classmethod
    def load(
        cls,
        specs: Sequence[str] = (),
        *,
        autoload: bool = True,
        strict: bool = False,
        environ: Mapping[str, str] | None = None,
        output: PluginOutput = ON_STDERR,
    ) -> Plugins:
        """The core, the installed plugins and the requested ones.

        Args:
            specs: as given to ``--plugin``: NAME, distribution, pkg.mod[:obj], ./file.py or no:NAME.
            autoload: load installed plugins that nobody asked for; VIME_DISABLE_PLUGIN_AUTOLOAD=1 switches it off too.
            strict: any plugin that cannot be loaded, and any failing observer, is an error.
            environ: where VIME_PLUGINS is read; by default the process environment.
            output: where lines about skipped plugins, and about each call of a hook, go.

        Raises:
            PluginError: a requested plugin cannot be used, or is not there.
        """
        environ = os.environ if environ is None else environ
        requested, omitted = loading.split_specs(specs, environ)
        autoload = autoload and not loading.autoload_disabled(environ)
        plans = loading.make_plans(requested, omitted, discovery.installed(), autoload)
        loaded = cls([loading.core_plan(), *plans], strict=strict, output=output)
        for registry in loaded.registries().values():
            for line in registry.shadowed():
                output.warn(line)
        return loaded

    @classmethod
    def from_lock(cls, records: Sequence[lock.Record], *, strict: bool = False) -> Plugins:
        """Exactly the plugins of a lock, in its order, without discovery or environment.

        Raises:
            PluginError: one is missing on this host, has another version, or cannot be loaded.
        """
        output = PluginOutput(warn=lambda line: warn(line, line))  # nobody reads a worker's standard error
        return cls(lock.plans_of(records), strict=strict, output=output)

    def lock(self) -> list[dict[str, Any]]:
        """Plain records for ``from_lock`` and the run folder."""
        return [lock.record(m.owner, m.spec, m.requested) for m in self._members]

    @property
    def members(self) -> tuple[LoadedPlugin, ...]:
        """Loaded plugins in order, the core first."""
        return tuple(self._members)

    def hooks_of(self, member: LoadedPlugin) -> list[str]:
        """Names of the hooks that a loaded plugin implements."""
        return hooks_of(member.plugin, self._manager)

    def registries(self) -> dict[str, Registry[Any]]:
        """Registration hook -> registry of its kind."""
        return {
            "vime_register_device_backends": self.devices,
            "vime_register_weight_syncs": self.weight_syncs,
            "vime_register_algorithms": self.algorithms,
            "vime_register_rollouts": self.rollouts,
            "vime_register_rewards": self.rewards,
            "vime_register_environments": self.environments,
            "vime_register_filters": self.filters,
            "vime_register_corrections": self.corrections,
            "vime_register_commands": self.commands,
        }

    # choice --------------------------------------------------------------------------------------------------
    def choose_device(self, name: str | None = None) -> Provider[type[DeviceBackend]]:
        """See ``vime_core.plugin.selection.choose_device``."""
        return selection.choose_device(self.devices, self._requested, name, self._warn)

    def choose_weight_sync(self, topology: Topology) -> str:
        """Name of the weight sync that fits; ``weight_syncs.resolve`` takes it.

        Raises:
            PluginError: a plugin chose a name that nobody registered, or nobody chose.
        """
        for member, answer in self._ask("vime_choose_weight_sync", topology=topology):
            if answer is None:
                continue
            own = f"{member.name}/{answer}"
            name = own if own in self.weight_syncs.names() else answer
            try:
                return self.weight_syncs.get(name).qualified_name
            except PluginError as error:
                raise PluginError(f"{member.owner}: vime_choose_weight_sync: {error}") from error
        raise PluginError(f"no plugin knows a weight sync for {topology}; say --weight-sync")

    # environment ---------------------------------------------------------------------------------------------
    def worker_environment(self, role: str, config: Config) -> dict[str, str]:
        """Variables for a process of ``role``, of all plugins together.

        Raises:
            PluginError: two plugins want different values for one variable.
        """
        merged: dict[str, str] = {}
        source: dict[str, LoadedPlugin] = {}
        for member, variables in self._ask("vime_worker_environment", role=role, config=config):
            for name, value in (variables or {}).items():
                if merged.get(name, value) != value:
                    raise PluginError(
                        f"{source[name].owner} wants {name}={merged[name]} and {member.owner} wants {name}={value} for "
                        f"{role} processes; leave one of them out with --plugin no:NAME"
                    )
                merged[name], source[name] = value, member
        return merged

    def process_started(self, role: str) -> None:
        """Call first in every process, before torch is imported. A plugin that nobody asked for and that fails here is
        left out of this process, with all that it registered."""
        hook = "vime_process_started"
        for member in list(self._hooks.implementing(hook, self._members)):
            try:
                self._hooks.ask(hook, member.plugin, role=role)
            except HookError as error:
                if member.requested or self.strict or member.name == CORE:
                    raise _blamed(member, error) from error.__cause__
                self._leave_out(member, str(error))

    def configure(self, config: Config) -> None:
        """Let every plugin check the final configuration.

        Raises:
            ConfigError: the violations that all plugins found, together.
        """
        hook, violations = "vime_configure", list[str]()
        for member in self._hooks.implementing(hook, self._members):
            try:
                self._hooks.ask(hook, member.plugin, config=config)
            except ConfigError as error:
                violations += [f"{member.owner}: {line}" for line in error.violations]
            except HookError as error:
                raise _blamed(member, error) from error.__cause__
        if violations:
            raise ConfigError(violations)

    # observation ---------------------------------------------------------------------------------------------
    def run_started(self, run: Any) -> None:
        self._observe("vime_run_started", run=run)

    def step_finished(self, run: Any, step: int, metrics: Mapping[str, float]) -> None:
        self._observe("vime_step_finished", run=run, step=step, metrics=metrics)

    def weights_synced(self, run: Any, version: int, seconds: float) -> None:
        self._observe("vime_weights_synced", run=run, version=version, seconds=seconds)

    def checkpoint_saved(self, run: Any, path: Path) -> None:
        self._observe("vime_checkpoint_saved", run=run, path=path)

    def run_finished(self, run: Any, outcome: str) -> None:
        self._observe("vime_run_finished", run=run, outcome=outcome)

    def failures(self) -> list[str]:
        """A line for each plugin and hook that failed as an observer, with how often; for the end of a run."""
        owners = {member.name: member.owner for member in self._members}
        return [
            f"{owners[plugin]}: {hook} failed {times} time{'s' if times > 1 else ''}; the run went on without it"
            for (plugin, hook), times in sorted(self.observer_failures.items())
        ]

    # how plugins are called ----------------------------------------------------------------------------------
    def _load_one(self, plan: LoadPlan) -> None:
        """Validate and register one plugin, all of it or nothing."""
        try:
            with time_limit(plan.seconds, f"import of {plan.spec}"):
                member = validate(plan, self._manager)
            try:
                self._register(member)
            except PluginError:
                self._manager.unregister(member.plugin)
                raise
        except (PluginError, DeadlineError) as error:
            fix = "" if plan.needed else f"; --plugin no:{plan.owner.name} leaves it out"
            if plan.requested or plan.needed or self.strict:
                raise PluginError(f"{plan.owner}: {error}{fix}") from error
            self._warn(f"{plan.owner} was skipped: {error}{fix}")
            return
        self._members.append(member)

    def _register(self, member: LoadedPlugin) -> None:
        collectors: dict[str, Any] = {**self.registries(), "vime_register_options": self.options}
        parts = []
        for hook in self.hooks_of(member):
            if hook not in collectors:
                continue
            part = collectors[hook].scoped(member.owner)
            argument = "options" if hook == "vime_register_options" else "registry"
            try:
                self._hooks.ask(hook, member.plugin, **{argument: part})
            except HookError as error:
                raise PluginError(str(error)) from error.__cause__
            parts.append((collectors[hook], part))
        for whole, part in parts:
            whole.merge(part)

    def _leave_out(self, member: LoadedPlugin, why: str) -> None:
        """A plugin that was loaded already."""
        reason = f"{member.owner} was left out: {why}"
        self._warn(f"{reason}; --plugin no:{member.name} leaves it out without this warning")
        self._manager.unregister(member.plugin)
        self._members.remove(member)
        self.options.remove(member.owner)
        for registry in self.registries().values():
            registry.remove(member.owner, reason)

    def _ask(self, hook: str, **arguments: Any) -> Iterator[tuple[LoadedPlugin, Any]]:
        """Each plugin's answer (None where it has none). An error ends the run and names its plugin."""
        for member in self._hooks.implementing(hook, self._members):
            try:
                yield member, self._hooks.ask(hook, member.plugin, **arguments)
            except HookError as error:
                raise _blamed(member, error) from error.__cause__

    def _observe(self, hook: str, **arguments: Any) -> None:
        for member in self._hooks.implementing(hook, self._members):
            try:
                self._hooks.ask(hook, member.plugin, **arguments)
            except HookError as error:
                self._failed(member, hook, error)

    def _failed(self, member: LoadedPlugin, hook: str, error: HookError) -> None:
        line = f"{member.owner}: {error}"
        if self.strict:
            raise PluginError(line) from error.__cause__
        self.observer_failures[member.name, hook] += 1
        if self.observer_failures[member.name, hook] == 1:
            warn(
                f"{member.owner}: {hook}",
                f"{line}; the run goes on, further failures are only counted",
                error.__cause__,
            )


def _blamed(member: LoadedPlugin, error: HookError) -> PluginError:
    fix = f"run without it (--plugin no:{member.name}) or report it to its authors"
    return PluginError(f"{member.owner}: {error}; {fix}")
