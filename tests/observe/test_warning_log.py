"""Warnings of every process reach one file and the terminal at once, each kind once, with a count."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_core.observe import RunFolder, WarningLog, WarningView
from vime_core.observe.lines import Lines
from vime_core.runtime import LOGGER, warn


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    before = list(logging.getLogger(LOGGER).handlers)
    yield RunFolder(tmp_path / "run").warnings
    assert logging.getLogger(LOGGER).handlers == before


def rows(path: Path) -> list[tuple[str, str, int, str]]:
    return [(row["process"], row["kind"], row["count"], row["text"]) for row in Lines(path).read()]


def test_the_first_of_a_kind_is_written_at_once_and_the_count_when_work_is_done(path: Path) -> None:
    log = WarningLog.attach(path, "rollout")
    for group in range(3):
        warn("group dropped", f"group {group} dropped")
    warn("stall", "no group finished")
    assert rows(path) == [
        ("rollout", "group dropped", 1, "group 0 dropped"),
        ("rollout", "stall", 1, "no group finished"),
    ]
    log.write_counts()
    log.write_counts()
    assert rows(path)[2:] == [("rollout", "group dropped", 3, "group 2 dropped")]
    warn("group dropped", "group 3 dropped")
    log.close()
    assert rows(path)[3:] == [("rollout", "group dropped", 4, "group 3 dropped")]
    warn("group dropped", "to nobody")
    assert len(rows(path)) == 4


def test_kinds_without_end_become_one(path: Path) -> None:
    log = WarningLog.attach(path, "rollout")
    for number in range(60):
        warn(f"reason {number}", "text")
    log.close()
    assert len(rows(path)) == 52
    assert rows(path)[-1][1:3] == ("further kinds", 10)


def test_the_first_traceback_of_a_kind_is_kept(path: Path) -> None:
    log = WarningLog.attach(path, "rollout")
    for number in (1, 2):
        try:
            raise ValueError(f"bad label {number}")
        except ValueError as error:
            warn("reward raised ValueError", f"reward: ValueError: {error}", error)
    log.close()
    first, second = Lines(path).read()
    assert first["traceback"].startswith("Traceback (most recent call last)")
    assert first["traceback"].endswith("ValueError: bad label 1\n")
    assert (second["count"], "traceback" in second) == (2, False)


def test_other_loggers_of_ours_are_heard_and_those_of_libraries_are_not(path: Path) -> None:
    log = WarningLog.attach(path, "rollout")
    logging.getLogger("vime.data").warning("%d rows", 3)
    logging.getLogger("vime.data").info("not this")
    logging.getLogger("httpx").warning("nor this")
    log.close()
    assert rows(path) == [("rollout", "%d rows", 1, "3 rows")]


def test_the_driver_shows_what_another_process_warns_of_while_it_runs(path: Path) -> None:
    code = f"""
import pathlib, sys
from vime_core.observe import WarningLog
from vime_core.runtime import warn
WarningLog.attach(pathlib.Path({str(path)!r}), "trainer rank 1")
warn("slow", "a step took long")
sys.stdin.read()
"""
    shown: list[str] = []
    with WarningView(path, shown.append) as view:
        worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        until = time.monotonic() + 60
        while not shown and time.monotonic() < until:
            time.sleep(0.05)
        assert worker.poll() is None
        assert shown == ["warning: trainer rank 1: a step took long"]
        worker.kill()
        worker.wait(30)
        assert worker.stdin is not None
        worker.stdin.close()
        assert view.summary() == "1 kind, 1 in all; see warnings.jsonl"


def test_a_kind_is_shown_once_whoever_says_it_and_counted_over_all(path: Path) -> None:
    shown: list[str] = []
    with WarningView(path, shown.append) as view:
        ranks = [WarningLog(path, f"trainer rank {rank}") for rank in (0, 1)]
        for log in ranks:
            logging.getLogger(LOGGER).addHandler(log)
        for _ in range(3):
            warn("loss", "the loss is odd")
        warn("other", "something else")
        for log in ranks:
            log.close()
        assert view.summary() == "2 kinds, 12 in all; see warnings.jsonl"
    assert [line.partition(": ")[2].partition(": ")[2] for line in shown] == ["the loss is odd", "something else"]


def test_a_torn_line_is_left_out_and_half_a_line_is_waited_for(path: Path) -> None:
    shown: list[str] = []
    with WarningView(path, shown.append) as view:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b'{"process": "a", "ki{"process"\n{"process": "a", "kind": "k", "count": 1, "te')
            file.flush()
            view.look()
            assert shown == []
            file.write(b'xt": "whole"}\n')
        view.look()
    assert shown == ["warning: a: whole"]


def test_a_folder_that_cannot_be_written_costs_the_warning_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    shown: list[str] = []
    with WarningView(tmp_path / "run" / "warnings.jsonl", shown.append) as view:
        warn("k", "something")
        warn("k", "something")
        assert view.summary() == ""
    assert shown == []


def test_it_goes_to_standard_error_by_itself(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with WarningView(path):
        warn("k", "something")
    assert capsys.readouterr() == ("", "warning: driver: something\n")
