"""One rank of the link's trial: ``python -m vime_cli.doctor.link_child ORDER``. It prints what it is about to do."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

from vime_cli.doctor.device_child import device_of

#: numbers that are summed: 4 MiB, which no transport sends in one packet
COUNT = 1 << 20


def main(order: dict[str, Any]) -> None:
    """Raises whatever torch raises, and RuntimeError for a wrong sum."""
    rank, world, address = order["rank"], order["world"], order["address"]
    _say("imported torch")
    device = device_of(order, "trainer")
    import torch
    import torch.distributed as dist

    device.set_device(device.local_index(rank))
    _say(f"waited for {world} ranks to meet at {address} and to connect")
    dist.init_process_group(
        device.collective,
        init_method=address,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=order["timeout"]),
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
    main(json.loads(sys.argv[1]))
