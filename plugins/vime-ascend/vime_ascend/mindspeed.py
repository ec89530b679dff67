"""MindSpeed in a trainer process: loaded before megatron, patched once more with the run's own arguments, and checked.

Importing ``mindspeed.megatron_adaptor`` does the work: it reads ``sys.argv``, makes ``torch.cuda`` mean the NPU for the
whole process, and replaces functions of megatron. Three things go wrong when it is left alone. In a Ray worker
``sys.argv`` is Ray's. Its scan asks every loaded module for names, and a module whose ``__getattr__`` imports something
that is missing ends the import. And every key that ``repatch`` is given becomes a field of Megatron's configuration, so
only MindSpeed's own keys may go in.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from vime_core.api import VimeError

#: what MindSpeed replaces whatever its arguments are
TARGETS = (
    "megatron.core.transformer.transformer_config:TransformerConfig.__init__",
    "megatron.core.transformer.transformer_config:TransformerConfig.__post_init__",
)
ADAPTOR = "mindspeed.megatron_adaptor"


class MindSpeed:
    """The adaptor of one process. ``install`` first thing, ``repatch`` before Megatron's groups are made."""

    def install(self) -> None:
        """Import the adaptor. Idempotent.

        Raises:
            VimeError: megatron was imported before it, or it is not installed, or cannot be imported.
        """
        if ADAPTOR in sys.modules:
            return
        early = sorted(name for name in sys.modules if name == "megatron" or name.startswith("megatron.core"))
        if early:
            raise VimeError(
                f"MindSpeed has to be imported before megatron, and {early[0]} is loaded already; names that were "
                "bound before would stay unpatched: leave out the plugin that imports megatron, or use "
                "--ascend-trainer plain"
            )
        with no_arguments(), scan_guard():
            self._import()

    def repatch(self, values: Mapping[str, Any]) -> Sequence[str]:
        """Apply the patches that the run's own arguments ask for; names of what is in force.

        Raises:
            VimeError: a key is not MindSpeed's, or its patches did not land.
        """
        self.install()
        adaptor: Any = sys.modules[ADAPTOR]
        mine = {"use_flash_attn": True, **values}
        foreign = sorted(set(mine) - set(own_arguments()))
        if foreign:
            raise VimeError(
                f"--ascend-mindspeed {', '.join(foreign)}: not MindSpeed's; Megatron's own options are written as flags"
            )
        with no_arguments(), scan_guard():
            adaptor.repatch(mine)
        return landed(TARGETS)

    def _import(self) -> None:
        try:
            importlib.import_module(ADAPTOR)
        except ImportError as error:
            raise VimeError(
                f"--ascend-trainer mindspeed: {error}; MindSpeed is not on PyPI: install core_r0.16.0 of "
                "https://gitcode.com/Ascend/MindSpeed, or use --ascend-trainer plain"
            ) from error


def own_arguments() -> Mapping[str, Any]:
    """MindSpeed's arguments and their defaults, as the installed version lists them."""
    utils: Any = importlib.import_module("mindspeed.args_utils")
    listed = utils.get_mindspeed_args()
    return listed if isinstance(listed, Mapping) else vars(listed)


def landed(targets: Sequence[str]) -> list[str]:
    """Names of the targets, all of which are MindSpeed's functions now.

    Raises:
        VimeError: one of them is still megatron's own.
    """
    folder = str(Path(str(sys.modules[ADAPTOR].__file__)).parent)
    for target in targets:
        # a wrapper takes over the name and module of what it wraps, but not the file that its code is in
        code = getattr(_resolve(target), "__code__", None)
        if code is None or not code.co_filename.startswith(folder):
            raise VimeError(
                f"MindSpeed did not patch {target}: this megatron-core and this MindSpeed do not belong together; "
                "install the same release of both (core_r0.16.0)"
            )
    return [f"mindspeed:{target}" for target in targets]


def _resolve(target: str) -> Any:
    place, _, path = target.partition(":")
    value: Any = importlib.import_module(place)
    for part in path.split("."):
        value = getattr(value, part)
    return value


@contextlib.contextmanager
def no_arguments() -> Iterator[None]:
    """``sys.argv`` without what belongs to somebody else."""
    kept, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = kept


@contextlib.contextmanager
def scan_guard() -> Iterator[None]:
    """Inside, a module that cannot compute an attribute says that it has none, as ``hasattr`` expects."""
    kept = [(module, hook) for module in list(sys.modules.values()) if (hook := _hook(module)) is not None]
    for module, hook in kept:
        module.__dict__["__getattr__"] = _quiet(hook)
    try:
        yield
    finally:
        for module, hook in kept:
            module.__dict__["__getattr__"] = hook


def _hook(module: object) -> Any:
    return module.__dict__.get("__getattr__") if isinstance(module, ModuleType) else None


def _quiet(hook: Any) -> Any:
    def ask(name: str) -> Any:
        try:
            return hook(name)
        except AttributeError:
            raise
        except Exception as error:
            raise AttributeError(f"{name}: {type(error).__name__}: {error}") from error

    return ask
