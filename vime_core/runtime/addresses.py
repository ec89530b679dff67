"""Where a process may listen."""

from __future__ import annotations

import socket


def free_address(nodes: int) -> tuple[str, int]:
    """(host, port) that is free now: loopback on one machine, the node's own address in a cluster."""
    if nodes == 1:
        host = "127.0.0.1"
    else:
        import ray

        host = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]
