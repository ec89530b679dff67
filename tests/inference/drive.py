"""A driver with one server and a router, for the test that kills it: ``python -m tests.inference.drive MODEL LOGS``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tests.inference.conftest import configuration
from vime_core.devices.cpu import CpuBackend
from vime_core.inference.group import EngineGroup
from vime_core.inference.launch import EngineLaunch
from vime_core.plugin.plugins import Plugins


def main(model: str, logs: str) -> None:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, namespace="vime")
    plugins = Plugins.load(["ascend"], autoload=False, environ={})
    group = EngineGroup.start(EngineLaunch(configuration(transport="router"), CpuBackend(), model, plugins, Path(logs)))
    print("up", group.urls[0], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
