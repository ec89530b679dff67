"""torch's key-value store, where ranks meet. By itself torch lets rank 0 listen on every address of the machine, and
takes keys from whoever comes; handed a socket, it listens where that is bound."""

from __future__ import annotations

import datetime
import functools
import importlib
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store


def bound_socket(host: str, port: int = 0) -> socket.socket:
    """A TCP socket that has ``port`` of ``host`` alone, and does not listen yet; 0: one that is free."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def serve_store(bound: socket.socket, world: int | None = None, timeout: datetime.timedelta | None = None) -> Store:
    """A store at ``bound``, which belongs to it from here on; with ``world`` this call waits for so many ranks."""
    import torch.distributed as dist

    host, port = bound.getsockname()[:2]
    keywords: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    return dist.TCPStore(
        host,
        port,
        world,
        is_master=True,
        wait_for_workers=world is not None,
        master_listen_fd=bound.detach(),
        **keywords,
    )


def listen_on_given_hosts() -> None:
    """From here on rank 0 of any ``tcp://host:port`` of this process listens at that host alone: for libraries that
    make their process groups themselves. Idempotent."""
    module: Any = importlib.import_module("torch.distributed.rendezvous")  # its package has a function of that name
    original = module._create_c10d_store
    if hasattr(original, "vime_fix"):
        return

    @functools.wraps(original)
    def create(hostname: str, port: int, rank: int, world_size: int, *more: Any) -> Store:
        """``more``: the timeout, and which of torch's implementations serves; a socket is taken by the default one."""
        if rank != 0 or module._torchelastic_use_agent_store():
            return original(hostname, port, rank, world_size, *more)
        return serve_store(bound_socket(hostname, port), world_size, more[0])

    create.vime_fix = True  # type: ignore[attr-defined]
    module._create_c10d_store = create
