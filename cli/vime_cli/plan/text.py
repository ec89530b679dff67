"""A report as lines of text: plain aligned tables, the verdict last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from vime_cli import units
from vime_cli.plan.findings import PlanFinding
from vime_cli.plan.parameters import whole
from vime_cli.plan.phases import Holding
from vime_cli.plan.placement import Rank
from vime_cli.plan.report import Report, given_values

size = partial(units.size, digits=2)
#: ranks that are listed one by one; more are listed as far as this and counted
_RANKS = 64


def lines(report: Report) -> Iterator[str]:
    """All of a stage's plan."""
    for title, part in (
        ("configuration (values that a layer set)", _configuration(report)),
        ("model", _model(report)),
        ("placement", _placement(report)),
        ("batches", _batches(report)),
        ("memory by phase", _memory(report)),
        ("weight sync", _sync(report)),
        ("time of a step", _time(report)),
        ("verdict", _verdict(report)),
    ):
        body = list(part)
        if body:
            yield ""
            yield f"{title}:"
            yield from (f"  {line}" for line in body)


def table(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Aligned columns; numbers to the right."""
    text = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in text) for i in range(len(text[0]))] if text else []
    for row, cells in zip(rows, text, strict=True):
        parts = [c.rjust(w) if isinstance(v, int | float | Cell) else c.ljust(w) for v, c, w in zip(row, cells, widths)]
        yield "  ".join(parts).rstrip()


def _configuration(report: Report) -> Iterator[str]:
    values = given_values(report.plan.inputs.config)
    yield from table([[name, "=", _short(value), f"({source})"] for name, (value, source) in values.items()])


def _short(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _model(report: Report) -> Iterator[str]:
    plan = report.plan
    shape, layout = plan.inputs.shape, plan.layout
    experts = f", {shape.experts} experts of which {shape.experts_per_token} a token" if shape.experts else ""
    yield f"{shape.model_type}, {whole(shape):,} parameters, {shape.layers} layers{experts}"
    yield (
        f"tensor {layout.tp} x pipeline {layout.pp} x context {layout.cp} x data {layout.dp} parallel, experts over "
        f"{layout.ep} (tensor {layout.etp}, {layout.edp} replicas)"
    )
    rows = [
        [f"stage {i}", "a rank's parameters", one.total, "of experts", one.expert]
        for i, one in enumerate(plan.parameters)
    ]
    yield from table(rows)
    needs = plan.inputs.needs
    beside = [name for name in ("reference", "teacher", "critic") if getattr(needs, name)]
    yield f"beside the policy: {', '.join(beside) or 'nothing'}; passes before training: {needs.forward_passes}"


def _placement(report: Report) -> Iterator[str]:
    placement = report.plan.placement
    machine = report.plan.inputs.machine
    slot = "slot" if machine.shared else "device"
    yield from table([_row(rank, slot) for rank in placement.ranks[:_RANKS]])
    if len(placement.ranks) > _RANKS:
        yield f"... and {len(placement.ranks) - _RANKS} more ranks (--json has all)"
    for service in placement.services:
        where = ", ".join(f"node {node} {slot} {device}" for node, device in service.devices)
        yield "  ".join(part for part in (service.name, where, service.note) if part)


def _row(rank: Rank, slot: str) -> list[object]:
    cells: list[object] = [f"rank {rank.rank}", f"node {rank.node} {slot} {rank.device}"]
    return cells + [f"{name} {getattr(rank, name)}" for name in ("tp", "cp", "dp", "pp", "ep")]


def _batches(report: Report) -> Iterator[str]:
    plan = report.plan
    packed, lengths = plan.packing, plan.lengths
    yield f"lengths: {lengths.source}"
    yield f"{len(lengths.samples)} samples a step, {lengths.tokens:,} tokens, {lengths.responses:,} of them responses"
    yield (
        f"{packed.optimizer_steps} optimizer steps of {packed.micro_batches} micro-batches a data-parallel rank; the "
        f"largest has {packed.largest:,} tokens a rank, at most {packed.bound:,}"
    )
    if packed.fill is not None:
        yield f"fill of --max-tokens-per-gpu {packed.cap}: {packed.fill:.0%}"
        if packed.fill < 0.5 and packed.micro_batches <= 1:
            yield "the cap is larger than a rank's whole step: fewer tokens would do"


def _memory(report: Report) -> Iterator[str]:
    limit = report.plan.inputs.machine.memory
    if limit is not None:
        yield f"{report.plan.inputs.machine.source}: {size(limit)}"
    for place in dict.fromkeys(one.place for one in report.holdings):
        yield f"{place}:"
        mine = [one for one in report.holdings if one.place == place]
        yield from (f"  {line}" for line in table(list(_grid(mine))))
    host = _host(report)
    if host:
        yield f"host memory of trainer ranks beside it: {size(host)} of weight copies and sync buffers on the fullest"
    engine = report.plan.engine
    if engine is not None:
        held = "as much as the device's memory leaves" if engine.holds is None else f"{engine.holds:,} tokens"
        yield f"an engine's cache holds {held}, {size(engine.a_token)} each"


def _grid(mine: Sequence[Holding]) -> Iterator[list[object]]:
    """A row a part, a column a phase."""
    yield ["", *(Cell(one.phase) for one in mine)]
    columns = [{part.name: part.bytes for part in one.parts} for one in mine]
    for name in dict.fromkeys(name for column in columns for name in column):
        if any(column.get(name) for column in columns):
            yield [name, *(Cell(size(column[name]) if column.get(name) else "-") for column in columns)]
    yield ["together", *(Cell(size(one.total)) for one in mine)]


class Cell(str):
    """Text that is set to the right, as numbers are."""


def _host(report: Report) -> int:
    plan = report.plan
    if plan.inputs.machine.shared:
        return 0
    copies = [sum(part.bytes for part in one.stays if part.host) for one in plan.trainers]
    return max(copies) + (plan.trainers[0].export if plan.traffic is not None else 0)


def _sync(report: Report) -> Iterator[str]:
    sent = report.plan.traffic
    if sent is not None:
        workers = f"{sent.workers} engine worker{'s' if sent.workers != 1 else ''}"
        yield f"{sent.payload:,} bytes ({size(sent.payload)}) every {_steps(sent.steps)}, to {workers}"
        yield f"over a network: {sent.buckets} buckets, {size(sent.received)} received by all workers together"


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count} steps"


def _time(report: Report) -> Iterator[str]:
    if report.timing is None:
        yield "not estimated: --calibrate measures this machine (about 2 s, imports torch)"
        return
    yield from table([[name, f"{seconds:.3g} s"] for name, seconds in [*report.timing.phases.items()]])
    yield f"together {report.timing.total:.3g} s, one phase after another, from {report.timing.built_from}"


def _verdict(report: Report) -> Iterator[str]:
    broken = report.breaks
    for finding in report.findings:
        if finding is broken or not finding.breaks:
            yield from _finding("breaks first" if finding is broken else "note", finding)
    later = [f.phase for f in report.findings if f.breaks and f is not broken]
    if later:
        yield f"and later: {', '.join(dict.fromkeys(later))}"
    if broken is None:
        machine = report.plan.inputs.machine
        unknown = f"not known: the memory of device {machine.device} ({machine.source}); give --memory-gib"
        yield unknown if machine.memory is None else f"fits ({size(machine.memory)}: {machine.source})"


def _finding(title: str, finding: PlanFinding) -> Iterator[str]:
    tokens = finding.unit == "tokens"
    need, limit = (f"{n:,} tokens" if tokens else size(n) for n in (finding.need, finding.limit))
    yield f"{title}: {finding.phase}: {finding.what}: {need} needed, {limit} there"
    yield from (f"  {fix}" for fix in finding.fixes)
