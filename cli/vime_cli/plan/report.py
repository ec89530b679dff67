"""A stage's plan with its findings: as plain data for other programs, and whether the run fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vime_cli.plan.calibration import Calibration
from vime_cli.plan.findings import PlanFinding
from vime_cli.plan.phases import Holding, holdings
from vime_cli.plan.stage_plan import StagePlan
from vime_cli.plan.timing import Timing, timing
from vime_core.config import to_plain


@dataclass(frozen=True)
class Report:
    """Of one stage. ``timing`` is None without a calibration."""

    stage: str
    plan: StagePlan
    holdings: Sequence[Holding]
    findings: Sequence[PlanFinding]
    timing: Timing | None

    @classmethod
    def of(cls, stage: str, plan: StagePlan, found: Sequence[PlanFinding], speed: Calibration | None) -> Report:
        return cls(stage, plan, holdings(plan), found, None if speed is None else timing(plan, speed))

    @property
    def breaks(self) -> PlanFinding | None:
        """The first thing that breaks."""
        return next((one for one in self.findings if one.breaks), None)

    def to_plain(self) -> dict[str, Any]:
        """JSON values; bytes and seconds as numbers."""
        plan = self.plan
        return {
            "stage": self.stage,
            "config": to_plain(plan.inputs.config),
            "provenance": dict(plan.inputs.config.provenance),
            "model": dataclasses.asdict(plan.inputs.shape),
            "needs": dataclasses.asdict(plan.inputs.needs),
            "machine": dataclasses.asdict(plan.inputs.machine),
            "layout": dataclasses.asdict(plan.layout),
            "parameters": [dataclasses.asdict(one) | {"total": one.total} for one in plan.parameters],
            "placement": dataclasses.asdict(plan.placement),
            "packing": dataclasses.asdict(plan.packing),
            "memory": [{**dataclasses.asdict(one), "total": one.total} for one in self.holdings],
            "engine": None if plan.engine is None else dataclasses.asdict(plan.engine) | {"holds": plan.engine.holds},
            "sync": None if plan.traffic is None else dataclasses.asdict(plan.traffic),
            "timing": None if self.timing is None else dataclasses.asdict(self.timing),
            "findings": [dataclasses.asdict(one) for one in self.findings],
            "fits": None if plan.inputs.machine.memory is None and self.breaks is None else self.breaks is None,
        }


def given_values(config: Any) -> Mapping[str, tuple[Any, str]]:
    """Option -> (value, layer) of everything that some layer set."""
    found: dict[str, tuple[Any, str]] = {}
    for section, values in to_plain(config).items():
        if isinstance(values, Mapping) and section not in ("provenance", "plugins"):
            prefix = f"{section}_" if section in ("vllm", "router") else ""
            for name, value in values.items():
                source = config.provenance.get(prefix + name, "default")
                if source != "default":
                    found[prefix + name] = (value, source)
    return found
