"""``vime plugins check``: the suites that fit what a plugin registers, run without pytest, a line a result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vime_core.api import PluginError
from vime_core.plugin import CORE, Plugins, installed
from vime_testing.plugin_suite import PluginSuite
from vime_testing.runner import CheckResult, run_suite

if TYPE_CHECKING:
    from vime_core.plugin import Provider
    from vime_testing.suite import Suite

#: end of the registration hook's name -> the suite of what it registers, in vime_testing
SUITES = {
    "device_backends": "DeviceSuite",
    "weight_syncs": "WeightSyncSuite",
    "algorithms": "AlgorithmSuite",
    "rollouts": "RolloutSuite",
    "rewards": "RewardSuite",
    "environments": "EnvironmentSuite",
}

Say = Callable[[str], None]


def check(specs: Sequence[str], say: Say = print) -> int:
    """Check plugins, all installed ones where none is named.

    Args:
        specs: as ``--plugin`` takes them, or ``core``.
        say: gets one line a result.

    Returns:
        Exit status: 1 if anything failed, else 0.
    """
    names = list(specs) or [candidate.name for candidate in installed()]
    if not names:
        say("no plugins are installed; vime plugins check core checks what is built in")
    failed = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that a device or an algorithm imports
        for result in (result for name in names for result in results(name)):
            say(result.line())
            failed += result.outcome == "FAIL"
    if failed:
        say(f"{failed} of the checks failed; docs/plugins/ shows how each kind is written")
    return 1 if failed else 0


def results(spec: str) -> Iterator[CheckResult]:
    """Of one plugin: what holds for every plugin, then what holds for each thing that it registers."""
    try:
        providers = list(_providers(spec))
    except PluginError as error:
        yield CheckResult(f"plugin {spec}", "it loads", "FAIL", str(error))
        return
    yield from run_suite(_subclass(PluginSuite, spec, None), f"plugin {spec}")
    for suite, provider in providers:
        subject = f"{provider.kind} {provider.qualified_name}"
        problem = _absent(provider)
        if problem:
            yield CheckResult(subject, "it loads here", "skip", problem)
        else:
            yield from _condensed(run_suite(_subclass(suite, spec, provider.qualified_name), subject))


def _condensed(found: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Checks that are skipped for one reason in one line, at the end."""
    skipped: dict[str, list[CheckResult]] = {}
    for result in found:
        if result.outcome == "skip":
            skipped.setdefault(result.detail, []).append(result)
        else:
            yield result
    for alike in skipped.values():
        yield replace(alike[0], check=f"{len(alike)} checks") if len(alike) > 1 else alike[0]


def _providers(spec: str) -> Iterator[tuple[type[Suite], Provider[Any]]]:
    import vime_testing as testing

    plugins = Plugins.load([spec], autoload=False, strict=True, environ={})
    names = {member.name for member in plugins.members if member.name != CORE} or {CORE}
    for kind, suite in SUITES.items():
        for provider in plugins.registries()[f"vime_register_{kind}"]:
            if provider.plugin in names:
                yield getattr(testing, suite), provider


def _absent(provider: Provider[Any]) -> str:
    """Why the thing cannot be loaded here, where its probe explains it; PluginSuite fails what is not explained."""
    try:
        provider.load()
    except PluginError as error:
        return provider.available()[1] or str(error)
    return ""


def _subclass(suite: type[Suite], plugin: str, target: str | None) -> type[Suite]:
    return type(suite.__name__, (suite,), {"plugin": plugin, "target": target, "__module__": suite.__module__})
