"""What doctor found, as text, a line a finding, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from vime_cli.doctor.doctor import NAMES, Doctor, DoctorResult

_WIDTH = max(map(len, NAMES))


def line(result: DoctorResult) -> str:
    """``broken   limits         open files: ...; fix: ...``"""
    finding = result.finding
    detail = " ".join(f"{finding.name}: {finding.detail}".split())
    fix = f"; fix: {finding.fix}" if finding.fix and finding.status != "ok" else ""
    return f"{finding.status:<7}  {result.check:<{_WIDTH}}  {detail}{fix}"


def summary(doctor: Doctor) -> str:
    """The last line."""
    broken, warnings = doctor.count("broken"), doctor.count("warning")
    if broken:
        return f"{broken} broken, {warnings} warnings; what is broken keeps a run from working"
    return f"nothing is broken, {warnings} warnings"


def as_json(doctor: Doctor) -> str:
    """``{"findings": [{check, status, name, detail, fix, items}], "broken": n, "warnings": n}``."""
    findings = [_record(result) for result in doctor.results]
    counts = {"broken": doctor.count("broken"), "warnings": doctor.count("warning")}
    return json.dumps({"findings": findings, **counts}, indent=2)


def _record(result: DoctorResult) -> dict[str, Any]:
    finding = dataclasses.asdict(result.finding)
    finding.pop("ok"), finding.pop("warns")
    return {"check": result.check, "status": result.finding.status, **finding}
