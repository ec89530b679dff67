"""Runs a suite without pytest: one result a test, in words."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from dataclasses import dataclass

from vime_core.api import VimeError
from vime_core.plugin import BLAMABLE, one_line
from vime_testing.suite import Suite, checks_of


@dataclass(frozen=True)
class CheckResult:
    """What came of one check. ``outcome`` is "ok", "FAIL" or "skip"; ``detail`` is empty where all is well."""

    subject: str
    check: str
    outcome: str
    detail: str = ""

    def line(self) -> str:
        text = f"{self.outcome:<4}  {self.subject}: {self.check}"
        return f"{text}: {self.detail}" if self.detail else text


def run_suite(suite: type[Suite], subject: str) -> Iterator[CheckResult]:
    """Run the tests of a suite one after another, as pytest would.

    Args:
        subject: what is under test, for the results.
    """
    names = [name for name in checks_of(suite) if name != "test_no_check_was_changed"]
    begin, end = getattr(suite, "setup_class", None), getattr(suite, "teardown_class", None)
    try:
        outcome, detail = _attempt(begin)
        for name in names:
            if outcome == "ok":
                yield CheckResult(subject, _words(name), *_attempt(getattr(suite(), name)))
        if outcome != "ok":
            yield CheckResult(subject, "can be set up for the checks", outcome, detail)
    finally:
        if end is not None:
            end()


def _attempt(call: object) -> tuple[str, str]:
    if not callable(call):
        return "ok", ""
    try:
        call()
    except unittest.SkipTest as reason:
        return "skip", " ".join(str(reason).split())
    except (AssertionError, VimeError) as error:
        return "FAIL", " ".join(str(error).split())
    except BLAMABLE as error:
        return "FAIL", one_line(error)
    return "ok", ""


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")
