"""Doctor goes on whatever a check does, and its exit status says whether anything is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from vime_cli.doctor.context import DoctorContext
from vime_cli.doctor.doctor import CHECKS, Check, Doctor, doctor_for
from vime_cli.doctor.report import as_json, line, summary

from vime_core.api.device import DoctorFinding
from vime_core.api.errors import UsageError

WELL, POOR = DoctorFinding("a", True, "well"), DoctorFinding("b", True, "poor", "mend it", warns=True)
BROKEN = DoctorFinding("c", False, "two\nlines", "replace it", items=("x", "y"))


def well(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield WELL


def raising(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield WELL
    raise ZeroDivisionError("by zero")


def leaving(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield WELL
    raise SystemExit(3)


def endless(context: DoctorContext) -> Iterator[DoctorFinding]:
    yield WELL
    time.sleep(30)


def done(*checks: Check) -> Doctor:
    made = Doctor(DoctorContext(), checks)
    list(made.run())
    return made


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (raising, "ZeroDivisionError: by zero"),
        (leaving, "SystemExit: 3"),
        (endless, "it did not end within 0.2 s"),
    ],
)
def test_a_check_that_fails_is_a_finding_and_the_others_follow(look, why: str) -> None:
    made = done(Check("one", look, 0.2), Check("two", well))
    assert [(one.check, one.finding.status) for one in made.results] == [
        ("one", "ok"),
        ("one", "broken"),
        ("two", "ok"),
    ]
    assert made.results[1].finding.detail == f"could not be looked at: {why}"
    assert made.exit_code == 1


def test_a_warning_does_not_change_the_exit_status() -> None:
    made = done(Check("one", lambda context: [WELL, POOR]))
    assert (made.exit_code, summary(made)) == (0, "nothing is broken, 1 warnings")


def test_lines() -> None:
    made = done(Check("ports", lambda context: [WELL, POOR, BROKEN]))
    assert [line(one) for one in made.results] == [
        "ok       ports          a: well",
        "warning  ports          b: poor; fix: mend it",
        "broken   ports          c: two lines; fix: replace it",
    ]
    assert summary(made) == "1 broken, 1 warnings; what is broken keeps a run from working"


def test_json() -> None:
    made = done(Check("ports", lambda context: [WELL, BROKEN]))
    assert json.loads(as_json(made)) == {
        "findings": [
            {"check": "ports", "status": "ok", "name": "a", "detail": "well", "fix": "", "items": []},
            {
                "check": "ports",
                "status": "broken",
                "name": "c",
                "detail": "two\nlines",
                "fix": "replace it",
                "items": ["x", "y"],
            },
        ],
        "broken": 1,
        "warnings": 0,
    }


def test_only_some_checks_in_their_own_order() -> None:
    made = doctor_for(DoctorContext(), only=["disk", "limits"])
    assert [check.name for check in made.checks] == ["limits", "disk"]
    assert [check.name for check in doctor_for(DoctorContext()).checks] == [check.name for check in CHECKS]


def test_an_unknown_check_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no check 'port'; did you mean 'ports'; there are: plugins, versions"):
        doctor_for(DoctorContext(), only=["port"])


def test_the_model_says_how_much_memory_and_disk(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"no \*.safetensors there"):
        doctor_for(DoctorContext(), model=tmp_path)
    (tmp_path / "a.safetensors").write_bytes(bytes(1000))
    (tmp_path / "b.safetensors").write_bytes(bytes(24))
    assert doctor_for(DoctorContext(), model=tmp_path).context.weights == 1024
