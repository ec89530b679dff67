"""What rules of device plugins share: how Megatron's options are read and named, and ranks that share their buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vime_core.config.catalogue import as_flag
from vime_core.config.sections import Config


def megatron_on(config: Config, name: str) -> bool:
    """A further option of Megatron is given, and is not a way to say no."""
    value: Any = config.megatron_extra.get(name)
    return value not in (None, False, "none", "None", 0)


def megatron_flag(config: Config, name: str) -> str:
    """How a violation names it: ``--fp8 hybrid (flag --fp8)``."""
    source = config.provenance.get(name, "default")
    return f"{as_flag(name)} {config.megatron_extra[name]} ({source})"


def lonely_ranks(config: Config, plugin: str, sync: str, device: str = "device") -> Iterator[str]:
    """A trainer rank that shares its buffer waits for a worker to have read it: every rank needs one on its device.

    Args:
        plugin: the plugin whose sync it is. sync: its name, the one that a colocated run gets unless told otherwise.
        device: what one is called.
    """
    name = (config.sync.weight_sync or sync).removeprefix(f"{plugin}/")
    own = config.cluster.colocate and config.needs_engines and not config.engine.rollout_external_engine_addrs
    if own and name == sync and config.engine_devices < config.trainer_ranks:
        yield (
            f"--colocate with engines on {config.engine_devices} of the trainer's {config.trainer_ranks} {device}s: by "
            f"{sync} every trainer rank passes its weights to a worker on its own {device}; give the engines all, or "
            "use --weight-sync shared_memory"
        )
