"""Which device runs, when there is a choice. Collected from the registry rather than asked of a hook, so that a tie
shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vime_core.api import DeviceBackend, PluginError
from vime_core.plugin.messages import BLAMABLE, listed, one_line
from vime_core.plugin.registry import Provider, Registry

Device = Provider[type[DeviceBackend]]


def choose_device(
    registry: Registry[type[DeviceBackend]], requested: Sequence[str], name: str | None, warn: Callable[[str], None]
) -> Device:
    """The device that ``name`` means, else the available one of the highest priority.

    A requested plugin that brings devices was asked for because of them: then one of its devices it is, or an error,
    never another device without a word. A named device is not probed: the machine that starts a run on a cluster may
    have none of its own.

    Raises:
        PluginError: no such device; none available (with every probe's reason); two of one priority.
    """
    if name is not None:
        return registry.get(name)
    preferred = [p for p in registry if p.plugin in requested]
    tried = [(provider, *_probe(provider, warn)) for provider in preferred or registry]
    able = [provider for provider, ok, _ in tried if ok]
    if not able:
        reasons = _reasons([(provider.qualified_name, reason or "no reason given") for provider, _, reason in tried])
        others = [p.qualified_name for p in registry if preferred and p not in preferred]
        gap = "\n" if "\n" in reasons else "; "
        fix = f"{gap}say --device to run on another: {listed(others)}" if others else ""
        asked = "requested " if preferred else ""
        raise PluginError(f"no {asked}device backend is available here; tried: {reasons}{fix}")
    best = [p for p in able if p.priority == max(q.priority for q in able)]
    if len(best) > 1:
        names = listed(p.qualified_name for p in best)
        raise PluginError(f"several device backends of priority {best[0].priority} can run here: {names}; say --device")
    return best[0]


def _reasons(tried: Sequence[tuple[str, str]]) -> str:
    """In one line, or a block for each device once a probe has several things to say."""
    if not any("\n" in reason for _, reason in tried):
        return listed(f"{name} ({reason})" for name, reason in tried)
    return "\n".join(f"{name}:\n  " + reason.replace("\n", "\n  ") for name, reason in tried)


def _probe(provider: Device, warn: Callable[[str], None]) -> tuple[bool, str]:
    try:
        return provider.ask()
    except BLAMABLE as error:
        reason = f"its probe raised {one_line(error)}"
        warn(f"{provider.owner}: device backend '{provider.name}' counts as not available: {reason}")
        return False, reason
