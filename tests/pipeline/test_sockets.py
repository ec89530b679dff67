"""What a run listens on while it is up, and what a stranger gets who tries it."""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.runs import Run, flags, step_rows
from vime_core.runtime.ray_token import refuses_strangers

Options = Callable[..., dict[str, Any]]
pytestmark = pytest.mark.slow

#: paths of vLLM's server and of the router that change something, or say something of the run
PATHS = (
    "/collective_rpc",
    "/pause",
    "/update_weight_version",
    "/inference/v1/generate",
    "/v1/models",
    "/metrics",
    "/add_worker?url=http://127.0.0.1:9",
    "/list_workers",
    "/",
)


def listening(run: Run) -> dict[tuple[str, int], str]:
    """(address, port) -> title of the process, of all processes of the run."""
    found = {}
    for pid, title in run.processes().items():
        try:
            sockets = psutil.Process(pid).net_connections(kind="inet")
        except psutil.Error:
            continue  # it has ended meanwhile
        found |= {(one.laddr.ip, one.laddr.port): title for one in sockets if one.status == psutil.CONN_LISTEN}
    return found


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def told(url: str, method: str) -> tuple[int, str]:
    """Status and text of the answer to a stranger; a POST is a whole request for tokens."""
    body = json.dumps({"model": "model", "token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}).encode()
    request = urllib.request.Request(
        url, body if method == "POST" else None, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return int(response.status), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def readable(run: Run) -> str:
    """What every user of the machine can read of the run: its command lines."""
    return "\n".join(run.processes().values())


def ray_address(ports: dict[tuple[str, int], str]) -> str:
    (port,) = {port for (_, port), title in ports.items() if "gcs_server" in title.split()[0]}
    return f"127.0.0.1:{port}"


def guarded(ports: dict[tuple[str, int], str]) -> list[str]:
    """URLs of engines and router, by the process that listens, each of which has refused all of :data:`PATHS`. The
    router's figures for Prometheus are open, on a port that has nothing else; so is an engine's ``/health``."""
    found = []
    for (_, port), title in ports.items():
        url = f"http://127.0.0.1:{port}"
        if not re.search(r"api_server|vllm::router", title):
            continue
        if told(f"{url}/", "GET")[1].startswith("# TYPE vllm_router_"):
            assert {told(url + path, "POST")[1][:19] for path in PATHS} == {"# TYPE vllm_router_"}
            continue
        codes = {path: {told(url + path, method)[0] for method in ("GET", "POST")} for path in PATHS}
        # 405: there is nothing of that method
        assert all(401 in code and code <= {401, 403, 405} for code in codes.values()), (url, title, codes)
        found.append(url)
    return found


@pytest.mark.parametrize("engines", [1, 2], ids=["direct", "router"])
def test_a_stranger_reaches_nothing(tmp_path: Path, grpo: Options, engines: int) -> None:
    options = grpo(num_rollout=10000, rollout_num_gpus=engines, actor_num_gpus_per_node=2)
    with Run(tmp_path, "train", *flags(**options)) as run:
        run.wait_for(lambda: step_rows(tmp_path / "run"), "a first step")
        ports = listening(run)
        beyond = {place: title for place, title in ports.items() if not is_loopback(place[0])}
        assert beyond == {}
        assert len(ports) > 5  # Ray's at least
        assert refuses_strangers(ray_address(ports))
        (token,) = run.temporary.glob("vime-*/ray-token")
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert token.read_text() not in readable(run)
        if engines > 1:
            assert len(guarded(ports)) == engines + 1
        run.signal(signal.SIGTERM)
        run.wait_until_gone()
    written = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())
    assert b"Bearer" not in written
