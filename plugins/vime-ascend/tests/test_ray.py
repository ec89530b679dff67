"""Placement by Ray on a machine that only claims to have NPUs: real Ray, real placement, no device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: run in a process of its own: a driver, and actors that say what they see
DRIVER = """
import json, os, ray
from vime_ascend.backend import AscendBackend
from vime_core.api import assigned_devices
from vime_ascend.process import started

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
ray.init(num_cpus=2, resources={"NPU": 4}, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
device = AscendBackend()

@ray.remote
class Seen:
    def look(self, role):
        started(role)
        return dict(ids=[int(one) for one in assigned_devices('NPU')], list=os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
                    index=AscendBackend().local_index(0), load=os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"])

def actor(role, devices):
    return Seen.options(**device.ray_options(devices), runtime_env={"env_vars": device.environment(role)}).remote()

trainers = [actor("trainer", 1) for _ in range(2)]
engine = actor("engine", 2)
rollout = Seen.options(num_cpus=1, runtime_env={"env_vars": device.environment("rollout")}).remote()
print(json.dumps(dict(
    trainers=ray.get([t.look.remote("trainer") for t in trainers], timeout=60),
    engine=ray.get(engine.look.remote("engine"), timeout=60),
    rollout=ray.get(rollout.look.remote("rollout"), timeout=60),
)))
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("node", ["", "8,9,10,11"], ids=["whole machine", "part of a machine"])
def test_workers_get_devices_of_their_own_and_know_their_place(node: str, tmp_path: Path) -> None:
    import json

    environ = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    if node:
        environ["ASCEND_RT_VISIBLE_DEVICES"] = node
    run = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=180, cwd=tmp_path, env=environ
    )
    assert run.returncode == 0, run.stderr[-3000:]
    seen = json.loads(run.stdout.splitlines()[-1])
    first = 8 if node else 0
    whole = list(range(first, first + 4))
    ids = [one["ids"] for one in seen["trainers"]] + [seen["engine"]["ids"]]
    assert sorted(i for part in ids for i in part) == whole
    # a trainer sees the node's list, and finds its own device by place
    for one in seen["trainers"]:
        assert one["list"] == (node or None)
        assert one["index"] == whole.index(one["ids"][0])
    # an engine sees its own, by number
    assert seen["engine"]["list"] == ",".join(map(str, sorted(seen["engine"]["ids"])))
    assert seen["rollout"]["ids"] == []
    assert [seen[who]["load"] for who in ("engine", "rollout")] == ["1", "0"]
