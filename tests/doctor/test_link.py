"""The link: real processes with the real collective, and what keeps them apart."""

from __future__ import annotations

import os

import pytest
from vime_cli.doctor import link
from vime_cli.doctor.context import DoctorContext

from vime_core.api.device import DoctorFinding


def look(deadline: float = 120.0, **environ: str) -> DoctorFinding:
    (found,) = link.look(DoctorContext(environ={**os.environ, **environ}), deadline)
    return found


def test_two_processes_get_the_right_sum() -> None:
    found = look()
    assert (found.status, found.detail) == ("ok", "gloo between 2 processes: an all-reduce gave the right sum")


def test_an_interface_that_is_not_there() -> None:
    found = look(GLOO_SOCKET_IFNAME="abacus0")
    assert found.status == "broken"
    assert "rank 0 while it waited for 2 ranks to meet at tcp://127.0.0.1:" in found.detail
    assert "abacus0" in found.detail
    assert found.fix.startswith("unset GLOO_SOCKET_IFNAME, or name an interface of this machine: lo")


PLUGIN = """
import os, time
from vime_core import hookimpl
from vime_core.devices.cpu import CpuBackend

class Lost(CpuBackend):
    {method}

@hookimpl
def vime_register_device_backends(registry):
    registry.add("lost", Lost, priority=99)
"""


def lost(world, method: str, deadline: float) -> DoctorFinding:
    world.write("lost.py", PLUGIN.format(method=method))
    (found,) = link.look(DoctorContext(("./lost.py",)), deadline)
    return found


def test_ranks_that_do_not_come_up_are_ended_and_named_with_what_they_were_at(world) -> None:
    found = lost(world, "def local_index(self, rank): time.sleep(600)", deadline=6.0)
    assert found.status == "broken"
    for rank in (0, 1):
        assert f"rank {rank} while it imported torch: did not end within" in found.detail


@pytest.mark.slow
def test_a_rank_that_ends_leaves_the_other_waiting_no_longer_than_the_deadline(world) -> None:
    found = lost(world, "def local_index(self, rank): return os._exit(7) if rank else 0", link.DEADLINE)
    assert found.status == "broken"
    assert "rank 1 while it imported torch: exit status 7" in found.detail
    assert "rank 0 while it waited for 2 ranks to meet at tcp://127.0.0.1:" in found.detail


def test_a_device_that_cannot_count(world) -> None:
    found = lost(world, "def count(self): raise OSError('gone')", link.DEADLINE)
    assert (found.status, found.detail) == ("broken", "devices cannot be counted: OSError: gone")
