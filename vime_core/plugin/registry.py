"""Providers of one kind, and how a name finds one.

A plugin adds names and string targets; nothing is imported before ``Provider.load``. Each plugin registers into a
registry of its own (``scoped``) which joins the whole only when all of its hooks returned (``merge``), so a plugin
that breaks half way leaves nothing behind. A bare name belongs to the first of: the only requested plugin that has it,
the core, the only other plugin that has it. Installing a package can therefore neither change nor break a command line,
and ``plugin/name`` always works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar

from vime_core.api import PluginError
from vime_core.plugin.messages import BLAMABLE, listed, nearest, one_line, remedy
from vime_core.plugin.targets import load_target, looks_like_path, split_target
from vime_core.runtime import time_limit

T = TypeVar("T")

CORE = "core"
#: seconds for the import of a target, which may bring in half of the world, and for a probe
_LOAD_SECS, _PROBE_SECS = 600.0, 120.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

#: answers "can this run here?" by ``bool`` or ``(bool, reason)``, without importing torch
Probe = Callable[[], "bool | tuple[bool, str]"]
#: raises PluginError, or says in words what is wrong with a loaded object of a kind; None: nothing
Shape = Callable[[Any], "str | None"]


@dataclass(frozen=True)
class Owner:
    """A plugin as messages name it. ``dist`` and ``version`` are of the distribution it came with, if any."""

    name: str
    dist: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        source = " ".join(part for part in (self.dist, self.version) if part)
        return f"plugin '{self.name}' ({source})" if source else f"plugin '{self.name}'"


@dataclass(frozen=True)
class Provider(Generic[T]):
    """One registered name. ``target`` is a string ``pkg.mod:obj`` or, in small plugins, the object itself."""

    kind: str
    name: str
    owner: Owner
    target: str | T
    summary: str = ""
    priority: int = 30
    probe: str | Probe | None = None
    shape: Shape | None = None

    @property
    def plugin(self) -> str:
        return self.owner.name

    @property
    def qualified_name(self) -> str:
        return f"{self.plugin}/{self.name}"

    @property
    def target_text(self) -> str:
        return self.target if isinstance(self.target, str) else f"an object of {type(self.target).__name__}"

    def load(self) -> T:
        """Import the target.

        Raises:
            PluginError: it cannot be imported here, or is not what its kind asks for.
        """
        what = f"{self.owner} could not provide {self.kind} '{self.name}' from '{self.target_text}'"
        try:
            with time_limit(_LOAD_SECS, f"import of {self.target_text}"):
                value = load_target(self.target) if isinstance(self.target, str) else self.target
        except BLAMABLE as error:
            raise PluginError(f"{what}: {one_line(error)}{remedy(error)}") from error
        wrong = self.shape(value) if self.shape else None
        if wrong:
            raise PluginError(f"{what}: {wrong}")
        return value

    def ask(self) -> tuple[bool, str]:
        """Ask the probe. Raises whatever the probe raises."""
        if self.probe is None:
            return True, ""
        with time_limit(_PROBE_SECS, f"the probe of {self.kind} '{self.name}'"):
            answer = (load_target(self.probe) if isinstance(self.probe, str) else self.probe)()
        ok, reason = answer if isinstance(answer, tuple) else (answer, "")
        return bool(ok), str(reason)

    def available(self) -> tuple[bool, str]:
        """Can it run on this machine, and why (not). A probe that raises counts as no and says so."""
        try:
            return self.ask()
        except BLAMABLE as error:
            return False, f"its probe raised {one_line(error)}"


def _distribution_of(place: str) -> str:
    """`` (my-dist 1.0)`` of a module that came with a distribution."""
    top = place.partition(".")[0]
    dists = () if place.endswith(".py") else metadata.packages_distributions().get(top, ())
    return f" ({dists[0]} {metadata.version(dists[0])})" if dists else ""


class Registry(Generic[T]):
    """All providers of one kind.

    Args:
        kind: as messages call it, e.g. "device backend".
        shape: says what is wrong with a loaded object of this kind.
        requested: names of the plugins that the user asked for; they come first.
    """

    def __init__(
        self, kind: str, shape: Shape | None = None, requested: Sequence[str] = (), owner: Owner | None = None
    ) -> None:
        self.kind = kind
        self._shape = shape
        self._requested = tuple(requested)
        self._owner = owner
        self._providers: dict[str, Provider[T]] = {}
        self._left_out: dict[str, str] = {}

    def add(
        self,
        name: str,
        target: str | T,
        *,
        summary: str = "",
        priority: int = 30,
        available: str | Probe | None = None,
    ) -> None:
        """Register ``target`` under ``name``. For plugins, inside a ``vime_register_*`` hook.

        Args:
            target: ``"pkg.mod:obj"``, imported when it is needed.
            summary: one line for listings.
            priority: among devices that are available, the highest runs by default (core's CPU 0, default 30).
            available: probe, or ``"pkg.mod:function"``, returning ``(bool, reason)``; must not import torch.
        """
        if self._owner is None:
            raise PluginError(f"{self.kind} '{name}': names can be added only inside a vime_register_* hook")
        if not _NAME.fullmatch(name):
            raise PluginError(f"{self.kind} '{name}': a name is letters, digits, '-' and '_'")
        provider = Provider(self.kind, name, self._owner, target, summary, priority, available, self._shape)
        if provider.qualified_name in self._providers:
            raise PluginError(f"{self.kind} '{name}' is added twice; give one of them another name")
        self._providers[provider.qualified_name] = provider

    # for the loader --------------------------------------------------------------------------------------------
    def scoped(self, owner: Owner) -> Registry[T]:
        """An empty registry of the same kind, into which ``owner`` registers."""
        return Registry(self.kind, self._shape, owner=owner)

    def merge(self, part: Registry[T]) -> None:
        """Take over what a plugin registered; the plugin can add no more."""
        self._providers.update(part._providers)
        part._owner = None

    def remove(self, owner: Owner, reason: str) -> None:
        """Take out what a plugin registered; who asks for it hears ``reason``."""
        for provider in [p for p in self if p.owner == owner]:
            del self._providers[provider.qualified_name]
            self._left_out |= {provider.name: reason, provider.qualified_name: reason}

    # for the core ----------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[Provider[T]]:
        return iter(self._providers.values())

    def __len__(self) -> int:
        return len(self._providers)

    def names(self) -> list[str]:
        """Every name that ``get`` takes: bare ones, then qualified ones."""
        return [*dict.fromkeys(p.name for p in self), *self._providers]

    def shadowed(self) -> Iterator[str]:
        """A line for each bare name of the core that a plugin has too: which of the two it means."""
        core = {provider.name for provider in self if provider.plugin == CORE}
        for provider in self:
            if provider.plugin == CORE or provider.name not in core:
                continue
            name, qualified = provider.name, provider.qualified_name
            if provider.plugin in self._requested:
                means = f"it now means {qualified}, since the plugin was asked for; the core's is {CORE}/{name}"
            else:
                means = f"it stays the core's; the plugin's is {qualified}"
            yield f"{provider.owner} adds {self.kind} '{name}', which is a name of the core: {means}"

    def get(self, name: str) -> Provider[T]:
        """The provider that ``name`` means.

        Raises:
            PluginError: nothing has this name (names the nearest), or several have it (lists the qualified names).
        """
        if name in self._providers:
            return self._providers[name]
        found = [p for p in self if p.name == name]
        if not found:
            hint = f": {self._left_out[name]}" if name in self._left_out else nearest(name, self.names())
            raise PluginError(f"no {self.kind} named '{name}'{hint}; there are: {self._listing()}")
        return self._first(found, name)

    def source(self, name_or_path: str) -> str:
        """Whose it is, for messages: `` of plugin 'mine' (my-dist 1.0)``; of a path, which says the rest itself, the
        distribution. Empty for the core's."""
        if name_or_path not in self._providers and looks_like_path(name_or_path):
            return _distribution_of(split_target(name_or_path)[0])
        owner = self.get(name_or_path).owner
        return "" if owner.name == CORE else f" of {owner}"

    def resolve(self, name_or_path: str) -> T:
        """The object itself: of a registered name, or of a target such as ``my_pkg.rewards:score`` or ``./r.py:score``.

        Raises:
            PluginError: as ``get`` and ``Provider.load``; a path that does not load, or of the wrong kind.
        """
        if name_or_path in self._providers or not looks_like_path(name_or_path):
            return self.get(name_or_path).load()
        where = f"{self.kind} '{name_or_path}'"
        place, attribute = split_target(name_or_path)
        if place.endswith(".py") and not attribute:
            raise PluginError(f"{where}: say which object of the file is meant: {name_or_path}:NAME")
        try:
            with time_limit(_LOAD_SECS, f"import of {name_or_path}"):
                value = load_target(name_or_path)
        except BLAMABLE as error:
            raise PluginError(f"{where}: {one_line(error)}") from error
        wrong = self._shape(value) if self._shape else None
        if wrong:
            raise PluginError(f"{where}: {wrong}")
        return value

    def _first(self, found: list[Provider[T]], name: str) -> Provider[T]:
        requested = [p for p in found if p.plugin in self._requested]
        core = [p for p in found if p.plugin == CORE]
        candidates = requested or core or found
        if len(candidates) == 1:
            return candidates[0]
        qualified = listed(p.qualified_name for p in candidates)
        raise PluginError(f"several plugins provide {self.kind} '{name}'; say which one: {qualified}")

    def _listing(self) -> str:
        return listed(dict.fromkeys(p.name for p in self))
