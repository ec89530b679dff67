"""Where torch's store listens: at the host that it was given, and at no other."""

from __future__ import annotations

import datetime
import os
from typing import Any

import psutil
import pytest

from vime_core.runtime.ports import free_port
from vime_core.runtime.tcp_store import bound_socket, listen_on_given_hosts, serve_store

TIMEOUT = datetime.timedelta(seconds=20)


def heard_at(port: int) -> set[str]:
    """Addresses where this process listens with ``port``."""
    found = psutil.Process(os.getpid()).net_connections(kind="inet")
    return {one.laddr.ip for one in found if one.status == "LISTEN" and one.laddr.port == port}


def test_a_store_listens_where_its_socket_is_bound() -> None:
    import torch.distributed as dist

    bound = bound_socket("127.0.0.1")
    port = bound.getsockname()[1]
    store = serve_store(bound)
    assert heard_at(port) == {"127.0.0.1"}
    store.set("key", "value")
    assert dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT).get("key") == b"value"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_rank_0_of_any_address_listens_there_alone(host: str) -> None:
    import torch.distributed as dist

    try:
        port = free_port(host)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    listen_on_given_hosts()
    listen_on_given_hosts()
    where = f"[{host}]" if ":" in host else host
    meeting: Any = dist.rendezvous(f"tcp://{where}:{port}", rank=0, world_size=1, timeout=TIMEOUT)
    store, rank, world = next(iter(meeting))
    store.set("key", "value")
    assert (heard_at(port), rank, world) == ({host}, 0, 1)


def test_a_taken_port_is_an_error() -> None:
    with bound_socket("127.0.0.1") as bound:
        bound.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket("127.0.0.1", bound.getsockname()[1])
