"""A checkup as text, a line a finding, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from vime_cli.doctor.checkup import NAMES, Checkup, Result

_WIDTH = max(map(len, NAMES))


def line(result: Result) -> str:
    """``broken   limits         open files: ...; fix: ...``"""
    finding = result.finding
    detail = " ".join(f"{finding.name}: {finding.detail}".split())
    fix = f"; fix: {finding.fix}" if finding.fix and finding.status != "ok" else ""
    return f"{finding.status:<7}  {result.check:<{_WIDTH}}  {detail}{fix}"


def summary(checkup: Checkup) -> str:
    """The last line."""
    broken, warnings = checkup.count("broken"), checkup.count("warning")
    if broken:
        return f"{broken} broken, {warnings} warnings; what is broken keeps a run from working"
    return f"nothing is broken, {warnings} warnings"


def as_json(checkup: Checkup) -> str:
    """``{"findings": [{check, status, name, detail, fix, items}], "broken": n, "warnings": n}``."""
    findings = [_record(result) for result in checkup.results]
    counts = {"broken": checkup.count("broken"), "warnings": checkup.count("warning")}
    return json.dumps({"findings": findings, **counts}, indent=2)


def _record(result: Result) -> dict[str, Any]:
    finding = dataclasses.asdict(result.finding)
    finding.pop("ok"), finding.pop("warns")
    return {"check": result.check, "status": result.finding.status, **finding}
