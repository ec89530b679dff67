"""Ports for servers of ours."""

from __future__ import annotations

import socket

from vime_core.runtime.tcp_store import bound_socket


class ReservedPort:
    """A free port that nobody else gets while the object lives.

    vLLM binds with SO_REUSEPORT, so two servers on one port would start without an error and share its requests. A
    socket that is bound the same way, but never listens, keeps the port from everybody who does not know it.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind((host, port))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def reachable_host() -> str:
    """Where a server of this process listens: loopback, or this node's address in a Ray cluster of several nodes."""
    import ray

    if not ray.is_initialized() or sum(node["Alive"] for node in ray.nodes()) <= 1:
        return "127.0.0.1"
    return ray.util.get_node_ip_address()


def free_port(host: str) -> int:
    """A port that is free now, for a server that shares none."""
    with bound_socket(host) as probe:
        return probe.getsockname()[1]
