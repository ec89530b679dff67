"""Where every process of a run goes: trainer ranks with their coordinates, engines, router, teacher.

Trainer ranks are numbered as Megatron numbers them: tensor parallel neighbours first, then context, data and pipeline
("tp-cp-ep-dp-pp"); experts divide the same ranks by expert tensor, expert, and expert data parallelism. Nodes are
filled in the order of ranks. Which device of its node an engine gets is Ray's choice unless trainer and engines share
devices; what is shown is one that fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_cli.plan.layout import Layout

if TYPE_CHECKING:
    from vime_core.config import Config

ROUTER = "router"


@dataclass(frozen=True)
class Rank:
    """A trainer rank, the node and the device it runs on, and its coordinates."""

    rank: int
    node: int
    device: int
    tp: int
    cp: int
    dp: int
    pp: int
    ep: int
    etp: int


@dataclass(frozen=True)
class Service:
    """Another process: an engine, the teacher's, the router, the rollout worker. ``devices`` are (node, device)."""

    name: str
    devices: tuple[tuple[int, int], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Placement:
    ranks: tuple[Rank, ...]
    services: tuple[Service, ...]

    @property
    def routed(self) -> bool:
        """A router stands before the engines, which then are servers."""
        return any(service.name == ROUTER for service in self.services)

    @property
    def nodes(self) -> int:
        """Nodes that hold a device of the run."""
        taken = [rank.node for rank in self.ranks] + [node for one in self.services for node, _ in one.devices]
        return max(taken, default=0) + 1


def trainer_ranks(layout: Layout, per_node: int) -> Iterator[Rank]:
    """All ranks in order."""
    for rank in range(layout.world):
        tp, rest = rank % layout.tp, rank // layout.tp
        cp, rest = rest % layout.cp, rest // layout.cp
        dp, pp = rest % layout.dp, rest // layout.dp
        etp, ep = rank % layout.etp, rank // layout.etp % layout.ep
        yield Rank(rank, rank // per_node, rank % per_node, tp, cp, dp, pp, ep, etp)


def place(config: Config, layout: Layout, per_node: int) -> Placement:
    """Of a whole stage. per_node: devices of a node."""
    ranks = tuple(trainer_ranks(layout, config.cluster.actor_num_gpus_per_node))
    return Placement(ranks, tuple(_services(config, per_node)))


def _services(config: Config, per_node: int) -> Iterator[Service]:
    yield Service("driver", note="no device")
    yield Service("rollout worker", note="no device")
    cluster = config.cluster
    beyond = (cluster.actor_num_nodes - 1) * per_node + cluster.actor_num_gpus_per_node
    at = 0 if cluster.colocate else beyond
    size = cluster.rollout_num_gpus_per_engine
    for index in range(config.num_engines if config.needs_engines else 0):
        yield Service(f"engine {index}", _devices(at, size, per_node), f"tensor parallel {size}")
        at += size
    for address in config.engine.rollout_external_engine_addrs:
        yield Service(f"engine at {address}", note="started by others")
    if config.teacher_engine:
        yield Service("teacher", _devices(max(at, beyond), size, per_node), f"tensor parallel {size}")
    if config.needs_engines and _routed(config):
        where = config.engine.vllm_router_ip
        yield Service(ROUTER, note=f"at {where}, started by others" if where else "no device")


def _routed(config: Config) -> bool:
    section = config.engine
    if section.engine_transport == "auto":
        return config.num_engines != 1 or section.vllm_router_ip is not None
    return section.engine_transport == "router"


def _devices(first: int, count: int, per_node: int) -> tuple[tuple[int, int], ...]:
    return tuple((at // per_node, at % per_node) for at in range(first, first + count))
