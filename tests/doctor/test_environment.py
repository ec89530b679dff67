"""Variables of the environment, one at a time."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading

import pytest
from vime_cli.doctor import environment
from vime_cli.doctor.ports import node_address


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5", "100000"])
def test_threads_that_are_no_number_of_cores(text: str) -> None:
    found = environment.threads({"OMP_NUM_THREADS": text})
    assert (found.status, found.fix) == ("warning", "export OMP_NUM_THREADS=1")
    assert repr(text) in found.detail


def test_threads_that_are_not_set() -> None:
    assert environment.threads({}).status == "warning"
    assert environment.threads({"OMP_NUM_THREADS": "1"}).status == "ok"


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_that_would_take_local_calls(variable: str) -> None:
    found = environment.proxies({variable: "http://127.0.0.1:9", "no_proxy": "example.org"})
    assert found.status == "broken"
    assert "127.0.0.1" in found.detail
    assert found.fix.startswith("export no_proxy=example.org,127.0.0.1,localhost")


def test_the_fix_is_one() -> None:
    broken = environment.proxies({"http_proxy": "http://127.0.0.1:9"})
    names = broken.fix.split()[1].removeprefix("no_proxy=")
    assert environment.proxies({"http_proxy": "http://127.0.0.1:9", "no_proxy": names}).status == "ok"
    assert environment.proxies({"http_proxy": "http://127.0.0.1:9", "NO_PROXY": "*"}).status == "ok"
    assert node_address() in names


def test_the_rule_is_that_of_the_calls_themselves() -> None:
    """With such a proxy vime's own health check does not reach a server of this machine; with the fix it does."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code = f"from vime_core.runtime.ports import answers; print(answers('http://127.0.0.1:{server.server_port}/'))"
        reached = []
        for more in ({}, {"no_proxy": "127.0.0.1"}):
            variables = {"http_proxy": "http://127.0.0.1:9", **more}
            clean = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
            done = subprocess.run(
                [sys.executable, "-c", code], env=clean | variables, capture_output=True, text=True, timeout=60
            )
            reached.append(done.stdout.strip())
        server.shutdown()
    assert reached == ["False", "True"]


def test_an_address_of_a_ray_cluster_in_the_environment() -> None:
    (found,) = environment.ray({"RAY_ADDRESS": "10.0.0.1:6379"})
    assert found.status == "broken"
    assert found.fix == "unset RAY_ADDRESS; vime train --ray-address 10.0.0.1:6379 joins it"
    assert list(environment.ray({})) == []


def test_a_misspelt_variable_of_vime() -> None:
    (found,) = environment.own({"VIME_ROLLOUT_BATCH_SIZ": "4"}, {})
    assert found.status == "broken"
    assert "VIME_ROLLOUT_BATCH_SIZ" in found.detail
    assert list(environment.own({"VIME_ROLLOUT_BATCH_SIZE": "4", "HOME": "/"}, {})) == []


def test_the_hub() -> None:
    assert "nothing is looked up" in environment.hub({"HF_HUB_OFFLINE": "1"}).detail
    assert environment.hub({}).ok
