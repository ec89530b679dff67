"""Which form of vLLM's weight-transfer interface is installed, told by its features and not by a version.

Within five months the interface changed twice, and vllm-ascend follows on its own dates. What differs for an engine of
ours is how it is constructed, whether the worker or the engine reloads layer by layer, and whether the name of a
backend is free. Engines of one form cannot be made by vLLM of another, which is an error long after the start; so both
are looked at before. vime's own updates use none of these forms; a pair that does not agree here was not made for one
another in other places either. ``python -m vime_ascend.sync.generation`` prints the form, or says what is wrong.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from vime_cli.doctor.packages import installed_version

from vime_core.api import ConfigError


@dataclass(frozen=True)
class Generation:
    """One form.

    Attributes:
        own_model: the engine is given the model and loads into it; before, the worker handed it a function.
        worker_reloads: the worker wraps an update in a layerwise reload unless it is told not to.
        factory: the sending end is made by a factory too, and the static functions are gone.
    """

    name: str
    own_model: bool
    worker_reloads: bool
    factory: bool


G1 = Generation("G1", own_model=False, worker_reloads=True, factory=False)
G2 = Generation("G2", own_model=True, worker_reloads=False, factory=False)
G3 = Generation("G3", own_model=True, worker_reloads=False, factory=True)


def of_engine(engine: type) -> Generation:
    """The form of an engine class: vLLM's base, or one of vllm-ascend's.

    Raises:
        ConfigError: neither of the known ones.
    """
    made = _parameters(engine.__init__)  # type: ignore[misc]
    received = _parameters(engine.receive_weights)  # type: ignore[attr-defined]
    if "parallel_config" in made and "load_weights" in received:
        return G1
    if {"vllm_config", "model"} <= made and "load_weights" not in received:
        return G2 if hasattr(engine, "trainer_send_weights") else G3
    raise ConfigError(
        f"{engine.__module__}.{engine.__name__}: its constructor takes {sorted(made - {'self'})} and receive_weights "
        f"{sorted(received - {'self'})}; vime knows three forms of this interface and this is none of them"
    )


def detect() -> Generation:
    """The form that is installed.

    Raises:
        ConfigError: vLLM and vllm-ascend have different ones, or one that is not known.
    """
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

    base = of_engine(WeightTransferEngine)
    theirs = _ascend_engine()
    if theirs is None:
        return base
    own = of_engine(theirs)
    if own.own_model != base.own_model:
        raise ConfigError(
            f"vLLM {_version('vllm')} has the weight-transfer interface {base.name} and vllm-ascend "
            f"{_version('vllm-ascend')} the interface {own.name}; install the pair of one release "
            "(constraints/ascend-a2.txt)"
        )
    return base


def _ascend_engine() -> Any:
    try:
        from vllm_ascend.distributed.weight_transfer.hccl_engine import HCCLWeightTransferEngine
    except ModuleNotFoundError as error:
        if error.name == "vllm_ascend":
            return None
        raise
    return HCCLWeightTransferEngine


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _version(name: str) -> str:
    return installed_version(name) or "(unknown)"


def main() -> int:
    try:
        print(detect().name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
