"""How a vLLM worker gets the bytes of an update: a string target that the driver puts into the worker's environment.

A manifest arrives over HTTP and names no code; the environment is the driver's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from vime_core.api import EngineError
from vime_core.plugin import load_target
from vime_core.weights.manifest import Manifest
from vime_core.weights.received import ReceivedBuckets

RECEIVER_VARIABLE = "VIME_WEIGHT_RECEIVER"
#: memory of this machine, or gloo
RECEIVER = "vime_core.weights.transports.host:HostReceiver"

#: (manifest, this worker's rank in a collective transfer) -> the weights. Raises what went wrong
Receive = Callable[[Manifest, int], ReceivedBuckets]


def make_receiver(target: str) -> Receive:
    """A class is made, once; a function is taken as it is.

    Raises:
        PluginError: nothing has this name.
    """
    found = load_target(target)
    made: Receive = found() if isinstance(found, type) else found
    return made


def chosen_receiver() -> Receive:
    """What this process's environment names.

    Raises:
        EngineError: it names nothing: the engine was not started for weights that change.
    """
    target = os.environ.get(RECEIVER_VARIABLE)
    if not target:
        raise EngineError(f"{RECEIVER_VARIABLE} is not set in this engine's environment: it has to name a receiver")
    return make_receiver(target)
