"""Targets: strings that name an object, imported when it is needed and not before.

``pkg.mod:obj``, ``pkg.mod`` (a module, or ``pkg.mod.obj``), ``./file.py:obj`` and ``file.py`` (the module). A file
becomes the module ``vime_local_<stem>``, is executed once a process, and is reachable afterwards as ``<stem>:obj``, so
``--plugin ./my_reward.py --reward my_reward:score`` works without a package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from vime_core.api import PluginError
from vime_core.plugin.messages import nearest

LOCAL_PREFIX = "vime_local_"


def looks_like_path(text: str) -> bool:
    """Is this a target rather than a registered name? Names hold no ``.`` and no ``:``; ``plugin/name`` is a name."""
    return ":" in text or text.endswith(".py") or ("." in text and "/" not in text)


def split_target(text: str) -> tuple[str, str]:
    """``"pkg.mod:obj"`` -> ``("pkg.mod", "obj")``; the second part is empty where none is given."""
    place, _, attribute = text.partition(":")
    return place, attribute


def absolute_target(text: str) -> str:
    """The same target with the folder of its file spelled out, for processes that start elsewhere."""
    place, attribute = split_target(text)
    if not place.endswith(".py"):
        return text
    full = str(Path(place).expanduser().resolve())
    return f"{full}:{attribute}" if attribute else full


def load_target(text: str) -> Any:
    """The object that ``text`` names.

    Raises:
        PluginError: no such file or attribute, or two files of one name.
        Exception: whatever the module raises while it is imported (the caller knows whose it is).
    """
    place, attribute = split_target(text)
    if place.endswith(".py"):
        return _walk(load_file(place), attribute, text)
    local = sys.modules.get(LOCAL_PREFIX + place)
    if local is not None:
        return _walk(local, attribute, text)
    if attribute:
        return _walk(_import(place), attribute, text)
    return _import_dotted(place, text)


def load_file(path: str) -> ModuleType:
    """Execute a Python file as the module ``vime_local_<stem>``, once a process."""
    full = Path(path).expanduser().resolve()
    if not full.is_file():
        raise PluginError(f"no file {path} (looked at {full})")
    name = LOCAL_PREFIX + full.stem
    known = sys.modules.get(name)
    if known is None:
        return _execute(name, full)
    if Path(str(known.__file__)) != full:
        raise PluginError(f"two files are named {full.name}: {known.__file__} and {full}; rename one of them")
    return known


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution, as import does: dataclasses and pickling look the module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not _is_part(error.name, place):
            raise  # the module is there and misses something of its own
        raise PluginError(
            f"no module '{error.name}'; install its package, put its folder on PYTHONPATH, "
            f"or name the file: ./file.py:obj"
        ) from error


def _import_dotted(place: str, text: str) -> Any:
    """``pkg.mod`` or, as users of other systems write it, ``pkg.mod.obj``."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        parent, _, last = place.rpartition(".")
        if error.name != place or not parent:
            return _import(place)
        return _walk(_import(parent), last, text)


def _is_part(missing: str | None, place: str) -> bool:
    return missing is not None and (place == missing or place.startswith(missing + "."))


def _walk(module: ModuleType, attribute: str, text: str) -> Any:
    value: Any = module
    for part in attribute.split(".") if attribute else []:
        try:
            value = getattr(value, part)
        except AttributeError as error:
            names = [name for name in vars(module) if not name.startswith("_")]
            raise PluginError(f"'{text}': {module.__name__} has no '{attribute}'{nearest(part, names)}") from error
    return value
