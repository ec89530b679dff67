"""Ports: whether servers may listen here, whether enough ports are free, and whether the named ones are."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from vime_cli.doctor.context import DoctorContext
from vime_core.api import DoctorFinding

LOOPBACK = "127.0.0.1"
#: ports that are held at once: Ray takes a dozen, a router two, an engine three, a trainer one
NEEDED = 64
#: of the range from which the system gives ports, the share in use from which connections begin to fail
FULL = 0.8
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def look(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield listening("loopback", LOOPBACK)
    yield listening("node", node_address())
    yield ephemeral()
    for port in context.ports:
        yield named(port)


def node_address() -> str:
    """This machine's address on the way out, as Ray finds it; loopback where there is no way out. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address


def listening(name: str, host: str, count: int = NEEDED) -> DoctorFinding:
    """``count`` servers at once on ``host``, and a connection to the last."""
    try:
        with contextlib.ExitStack() as held:
            for _ in range(count):
                server = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
                server.bind((host, 0))
                server.listen(1)
            held.enter_context(socket.create_connection(server.getsockname(), timeout=5.0))
    except OSError as error:
        fix = "free ports or file descriptors; where a connection is refused or runs out of time, look at the firewall"
        return DoctorFinding(name, False, f"{host}: {count} servers cannot listen and be reached: {error}", fix)
    return DoctorFinding(name, True, f"{host}: {count} servers can listen and be reached")


def ephemeral(limits: Path = RANGE, tables: Path = Path("/proc/net")) -> DoctorFinding:
    """The range of ports that the system hands out, and how many of it are taken."""
    try:
        low, high = map(int, limits.read_text().split())
    except OSError as error:
        return DoctorFinding("range", True, f"{limits} cannot be read: {error.strerror}", warns=True)
    taken = {port for port in local_ports(tables) if low <= port <= high}
    share = len(taken) / (high - low + 1)
    detail = f"{len(taken)} of the ports {low} to {high} are taken"
    if share < FULL and high - low + 1 - len(taken) >= NEEDED:
        return DoctorFinding("range", True, detail)
    fix = "end what holds them (ss -tanp), or sysctl -w net.ipv4.ip_local_port_range='10000 65535'"
    return DoctorFinding("range", False, detail, fix)


def named(port: int) -> DoctorFinding:
    """A port that the user means to give to a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            fix = f"end what listens there (ss -tlnp 'sport = :{port}')" if taken else "name another port"
            return DoctorFinding(f"port {port}", False, "is taken" if taken else f"cannot be used: {error}", fix)
    return DoctorFinding(f"port {port}", True, "is free")


def local_ports(tables: Path) -> Iterator[int]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a machine without IPv6 has no second table
            for line in (tables / name).read_text().splitlines()[1:]:
                yield int(line.split()[1].rpartition(":")[2], 16)
