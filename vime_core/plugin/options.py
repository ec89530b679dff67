"""Options of plugins: one frozen dataclass a plugin, whose fields are flags and TOML keys at once.

Field ``buffer_mb`` of plugin ``mine`` is ``--mine-buffer-mb`` and a key of ``[plugins.mine]``. The help text is in the
field's metadata. One definition gives the flag, the key, the type check and ``vime plugins info``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from vime_core.api import PluginError
from vime_core.plugin.registry import Owner


class Options(Mapping[str, type]):
    """Plugin name -> its options dataclass. A plugin's hook gets one of its own and calls ``add``."""

    def __init__(self, owner: Owner | None = None) -> None:
        self._owner = owner
        self._types: dict[str, type] = {}

    def add(self, dataclass_type: type) -> None:
        """Register the options of the plugin that is being loaded: a frozen dataclass, every field with a default and
        ``metadata={"help": ...}``.

        Raises:
            PluginError: it is not one, or a flag is taken by the core.
        """
        if self._owner is None:
            raise PluginError("options can be added only inside vime_register_options")
        if self._types:
            raise PluginError("a plugin has one dataclass of options, and a second was added")
        wrong = _wrong(dataclass_type, self._owner.name)
        if wrong:
            raise PluginError(wrong)
        self._types[self._owner.name] = dataclass_type

    def scoped(self, owner: Owner) -> Options:
        return Options(owner)

    def merge(self, part: Options) -> None:
        self._types.update(part._types)
        part._owner = None

    def remove(self, owner: Owner) -> None:
        self._types.pop(owner.name, None)

    def __getitem__(self, plugin: str) -> type:
        return self._types[plugin]

    def __iter__(self) -> Any:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def flag_of(plugin: str, field: str) -> str:
    return f"--{plugin}-{field}".replace("_", "-")


def _wrong(value: Any, plugin: str) -> str:
    name = getattr(value, "__name__", repr(value))
    if not (isinstance(value, type) and dataclasses.is_dataclass(value)):
        return f"options {name}: not a dataclass"
    if not value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return f"options {name}: the dataclass is not frozen; write @dataclass(frozen=True)"
    for field in dataclasses.fields(value):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            return f"options {name}.{field.name}: no default"
        if not field.metadata.get("help"):
            return f"options {name}.{field.name}: no help; write field(default=..., metadata={{'help': '...'}})"
        if flag_of(plugin, field.name) in _core_flags():
            return f"options {name}.{field.name}: {flag_of(plugin, field.name)} is a flag of the core"
    return ""


def _core_flags() -> set[str]:
    from vime_core.config import SECTIONS, as_flag

    return {as_flag(field.name) for section in SECTIONS.values() for field in dataclasses.fields(section)}
