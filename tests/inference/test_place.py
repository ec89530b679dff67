"""Engines on the devices of trainer ranks: real Ray on a machine that only claims to have devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime_core.api import ConfigError, VisibleDevices
from vime_core.devices.cpu import CpuBackend
from vime_core.inference.node_placement import NodePlacement, shared_placement

#: run in a process of its own: trainer ranks that take every device, and engines beside them that say what they see
DRIVER = """
import json, os, sys, ray
from vime_core.api import VisibleDevices
from vime_core.devices.cpu import CpuBackend
from vime_core.inference.node_placement import NodePlacement, shared_placement

resource, variable, size = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])

class Device(CpuBackend):
    visible_devices = VisibleDevices(variable) if variable else None

    def ray_options(self, devices):
        if resource == "GPU":
            return {"num_gpus": devices, "num_cpus": 0}
        return {"resources": {resource: devices}, "num_cpus": 0}

have = {"num_gpus": 4} if resource == "GPU" else {"resources": {resource: 4}}
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR", **have)
device = Device()

@ray.remote
class Worker:
    def place(self):
        return NodePlacement.here()

    def sees(self):
        return NodePlacement.here().node, os.environ.get(variable or "")

trainers = [Worker.options(**device.ray_options(1)).remote() for _ in range(4)]
ranks = ray.get([trainer.place.remote() for trainer in trainers], timeout=60)
free = ray.available_resources().get(resource, 0)
places = [shared_placement(ranks, index, size) for index in range(4 // size)]
engines = [
    Worker.options(**place.options(device), runtime_env={"env_vars": dict(place.environment(device))}).remote()
    for place in places
]
print(json.dumps(dict(
    ranks=[[rank.node, rank.devices] for rank in ranks],
    engines=ray.get([engine.sees.remote() for engine in engines], timeout=60),
    free=free,
)))
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("resource", "variable", "size"),
    [
        ("GPU", "CUDA_VISIBLE_DEVICES", 1),
        ("GPU", "CUDA_VISIBLE_DEVICES", 2),
        ("NPU", "ASCEND_RT_VISIBLE_DEVICES", 2),
        ("slot", "", 1),
    ],
)
def test_an_engine_sees_the_devices_of_its_ranks(tmp_path: Path, resource: str, variable: str, size: int) -> None:
    """Though the trainer has reserved all there are. A resource that Ray only counts has no ids to tell."""
    environ = {name: value for name, value in os.environ.items() if name != variable}
    command = [sys.executable, "-c", DRIVER, resource, variable, str(size)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=tmp_path, env=environ)
    assert run.returncode == 0, run.stderr[-3000:]
    seen = json.loads(run.stdout.splitlines()[-1])
    assert seen["free"] == 0
    nodes, devices = zip(*seen["ranks"])
    assert {node for node, _ in seen["engines"]} == set(nodes)
    if not variable:
        assert set(map(tuple, devices)) == {()}
        return
    assert sorted(one for rank in devices for one in rank) == ["0", "1", "2", "3"]
    for index, (_, visible) in enumerate(seen["engines"]):
        mine = [int(one) for rank in devices[index * size : (index + 1) * size] for one in rank]
        assert visible == ",".join(map(str, sorted(mine)))


class Listed(CpuBackend):
    visible_devices = VisibleDevices("SEEN")


def test_devices_are_told_by_number() -> None:
    place = shared_placement([NodePlacement("n", ("10",)), NodePlacement("n", ("2",))], 0, 2)
    assert place.environment(Listed())["SEEN"] == "2,10"
    assert place.environment(CpuBackend()) == {}
    assert NodePlacement("n").environment(Listed()) == {}


def test_an_engine_has_one_node() -> None:
    ranks = [NodePlacement(node, (str(index),)) for node in "ab" for index in range(3)]
    assert shared_placement(ranks, 1, 1) == NodePlacement("a", ("1",))
    with pytest.raises(ConfigError, match="engine 1 would take the devices of trainer ranks 2 to 3"):
        shared_placement(ranks, 1, 2)
