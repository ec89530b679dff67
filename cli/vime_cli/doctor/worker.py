"""What doctor looks at in a process of its own: ``python -m vime_cli.doctor.worker COMMAND ARGUMENT``.

``import MODULE`` imports it; an error is one line, with what caused it. The other commands start as a worker of the run
does; their argument is JSON, ``{"lock": [...], "device": NAME}``. ``findings``, ``shims`` and ``count`` print JSON as
their last line: the backend's findings, the names of the shims that megatron got, the number of its devices. ``link``
is one rank of the link's trial, and prints what it is about to do.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vime_core.plugin import BLAMABLE, one_line

if TYPE_CHECKING:
    from vime_core.api import DeviceBackend

#: numbers that are summed: 4 MiB, which no transport sends in one packet
COUNT = 1 << 20


def main(command: str, argument: str) -> int:
    if command == "import":
        return import_module(argument)
    spec = json.loads(argument)
    if command == "link":
        link(spec)
        return 0
    print("\n" + json.dumps(ANSWERS[command](spec)))
    return 0


def import_module(module: str) -> int:
    warnings.simplefilter("ignore")
    try:
        importlib.import_module(module)
    except BLAMABLE as error:
        print(" <- ".join(_chain(error)), file=sys.stderr)
        return 1
    return 0


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield one_line(error)
        error = error.__cause__


def device_of(spec: Mapping[str, Any], role: str) -> DeviceBackend:
    """The backend, in a process that has started as one of ``role`` does."""
    from vime_core.plugin import Plugins

    plugins = Plugins.from_lock(spec["lock"])
    plugins.process_started(role)
    return plugins.devices.resolve(spec["device"])()


def findings(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(one) for one in device_of(spec, "driver").doctor()]


def shims(spec: Mapping[str, Any]) -> list[str]:
    return list(device_of(spec, "trainer").adapt_megatron())


def count(spec: Mapping[str, Any]) -> int:
    return device_of(spec, "trainer").count()


ANSWERS = {"findings": findings, "shims": shims, "count": count}


def link(spec: Mapping[str, Any]) -> None:
    """Raises whatever torch raises, and RuntimeError for a wrong sum."""
    rank, world, address = spec["rank"], spec["world"], spec["address"]
    _say("imported torch")
    device = device_of(spec, "trainer")
    import torch
    import torch.distributed as dist

    from vime_core.runtime import listen_on_given_hosts

    listen_on_given_hosts()
    device.set_device(device.local_index(rank))
    _say(f"waited for {world} ranks to meet at {address} and to connect")
    dist.init_process_group(
        device.collective,
        init_method=address,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=spec["timeout"]),
    )
    _say("summed")
    values = torch.full((COUNT,), float(rank + 1), device=device.torch_device(device.local_index(rank)))
    dist.all_reduce(values)
    device.synchronize()
    wanted = world * (world + 1) / 2
    if not bool((values == wanted).all()):
        raise RuntimeError(f"the sum should be {wanted}, it is {values[0].item()} to {values[-1].item()}")
    dist.destroy_process_group()


def _say(doing: str) -> None:
    print(doing, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
