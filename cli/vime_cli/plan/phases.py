"""Who holds how much in each phase of a step, summed over what parameters one memory.

On a device with memory of its own that is one device: the trainer rank on it, the engine worker on it, or both where
they are colocated. Where devices are process slots it is a node with all of its processes. In phases after training an
allocator still holds some of what training took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vime_cli.plan.machine import Machine
from vime_cli.plan.placement import Rank
from vime_cli.plan.stage_plan import StagePlan
from vime_cli.plan.tensor_bytes import PeakBytes
from vime_cli.plan.trainer_memory import Part

PHASES = ("rollout", "log_probs", "train", "sync")


@dataclass(frozen=True)
class Holding:
    """What one memory holds in one phase. ``place``: "node 0", or "node 0 device 3"."""

    place: str
    phase: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        return sum(part.bytes for part in self.parts)


def holdings(plan: StagePlan) -> list[Holding]:
    """The fullest memory of each phase and kind (trainer, engine, shared), in the order of phases."""
    found: dict[tuple[str, str], Holding] = {}
    for phase in PHASES:
        for kind, holding in _of_phase(plan, phase):
            key = (phase, kind)
            if key not in found or holding.total > found[key].total:
                found[key] = holding
    return list(found.values())


def _of_phase(plan: StagePlan, phase: str) -> Iterator[tuple[str, Holding]]:
    tenants = _tenants(plan, phase)
    if plan.inputs.machine.shared:
        for node in range(plan.placement.nodes):
            parts = [part for (where, _), mine in tenants for part in mine if where == node]
            parts += _beside(plan) if node == 0 else []
            yield "node", Holding(f"node {node}", phase, tuple(_joined(parts)))
        return
    by_device: dict[tuple[int, int], list[Part]] = {}
    for place, mine in tenants:
        by_device.setdefault(place, []).extend(part for part in mine if not part.host)
    for (node, device), parts in by_device.items():
        kinds = sorted({"engine" if part.name.startswith("engine") else "trainer" for part in parts})
        yield " and ".join(kinds), Holding(f"node {node} device {device}", phase, tuple(parts))


def _tenants(plan: StagePlan, phase: str) -> list[tuple[tuple[int, int], list[Part]]]:
    found = [((rank.node, rank.device), list(trainer_parts(plan, rank, phase))) for rank in plan.placement.ranks]
    for service in plan.placement.services:
        # a teacher is another model, whose folder is not read here: taken to be of the policy's size
        found += [(place, list(engine_parts(plan, phase, service.name))) for place in service.devices]
    return found


def trainer_parts(plan: StagePlan, rank: Rank, phase: str) -> Iterator[Part]:
    """Of one trainer rank."""
    memory, machine = plan.trainers[rank.pp], plan.inputs.machine
    costs = machine.costs
    if costs.trainer:
        yield Part("trainer: process", costs.trainer)
    parked = phase == "rollout" and plan.inputs.config.offloads_trainer(machine.sleeps)
    for part in memory.stays:
        yield Part(part.name, part.bytes, part.host or parked)
    passing = 0 if parked else _passing(memory.passing, phase, machine)
    yield Part("activations, logits, the like", passing)
    if rank.rank == 0 and plan.traffic is not None:
        yield Part("sync: two buffers of all weights", memory.export, True)


def _passing(passing: Mapping[str, PeakBytes], phase: str, machine: Machine) -> int:
    """A phase's own, and what the allocator keeps of training."""
    mine, train = passing.get(phase, PeakBytes()), passing["train"]
    if not machine.shared:
        return max(mine.total, train.total)
    costs = machine.costs
    return round(max(costs.peak * mine.heap, costs.kept * train.heap)) + mine.mapped


def engine_parts(plan: StagePlan, phase: str, name: str) -> Iterator[Part]:
    """Of one engine worker; asleep it keeps its process, and wakes its weights for a sync."""
    engine, machine = plan.engine, plan.inputs.machine
    if engine is None:
        return
    teacher = name == "teacher"
    asleep = not teacher and phase != "rollout" and plan.inputs.config.engines_sleep(machine.sleeps)
    who = "engine (teacher)" if teacher else "engine"
    if machine.costs.engine:
        yield Part(f"{who}: process", machine.costs.engine)
    if not asleep or phase == "sync":
        yield Part(f"{who}: weights", round(machine.costs.copies * engine.weights))
    if not asleep:
        yield Part(f"{who}: keys and values", max(engine.kv_cache or 0, 0))
        yield Part(f"{who}: logits of a step", engine.logits)


def _beside(plan: StagePlan) -> list[Part]:
    """Processes without a model, on the first node."""
    costs, engines = plan.inputs.machine.costs, [s for s in plan.placement.services if s.devices]
    around = costs.server if plan.placement.routed else costs.direct
    return [
        Part("driver, rollout worker, Ray", costs.beside),
        Part("engines: their actors and servers", around * len(engines)),
    ]


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Parts of one name of several processes as one."""
    found: dict[str, int] = {}
    count: dict[str, int] = {}
    for part in parts:
        found[part.name] = found.get(part.name, 0) + part.bytes
        count[part.name] = count.get(part.name, 0) + 1
    return [Part(name + (f" (x {count[name]})" if count[name] > 1 else ""), size) for name, size in found.items()]
