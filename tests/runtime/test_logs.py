"""What an error message says of a log: the first error in it, and where the log is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vime_core.runtime.logs import log_error

WORKER = "(VllmWorker-0 pid=5611) ERROR 12-03 09:57:58 [multiproc_executor.py:953]"
CORE = "(EngineCore pid=5460) ERROR 12-03 09:58:03 [core.py:1510]"
WARNED = "(MainProcess pid=1) WARNING 12-03 09:57:00 [cpu.py:224]"
TRACE = "Traceback (most recent call last):"

#: as vLLM 0.32 wrote it when its CPU worker found too little memory
ENGINE = f"""W1203 09:57:53.913000 25611 torch/_library/triton.py:53] Triton not available
{WARNED} No error: Triton is not installed.
{WARNED} {TRACE}
{WARNED} ImportError: optional thing
(EngineCore pid=5460) INFO 12-03 09:57:18 [core.py:133] Initializing, ERROR is no level here
{WORKER} WorkerProc failed to start.
{WORKER} {TRACE}
{WORKER}   File "vllm/executor.py", line 920, in worker_main
{WORKER}     worker = WorkerProc(*args, **kwargs)
(EngineCore pid=5460) INFO 12-03 09:57:58 [multiproc_executor.py:479] [shutdown] waiting
{WORKER}   File "vllm/cpu_worker.py", line 83, in __init__
{WORKER}     raise ValueError(
{WORKER} ValueError: Available memory is less than desired.
{WORKER} To resolve: decrease it
{CORE} EngineCore failed to start.
{CORE} {TRACE}
{CORE}   File "vllm/core.py", line 1482, in run_engine_core
{CORE} Exception: WorkerProc initialization failed. See root cause above.
RuntimeError: Engine core initialization failed. See root cause above.
"""
PLAIN = f"""\x1b[31mloading\x1b[0m
{TRACE}
  File "a.py", line 1, in <module>
    ^^^
pydantic.ValidationError: 1 error
  Value error, no such model
done
{TRACE}
  File "b.py", line 2, in <module>
RuntimeError: second
"""
CASES = {
    "engine": (
        ENGINE,
        [
            '  File "vllm/cpu_worker.py", line 83, in __init__',
            "ValueError: Available memory is less than desired.",
            "To resolve: decrease it",
        ],
    ),
    "plain": (
        PLAIN,
        ['  File "a.py", line 1, in <module>', "pydantic.ValidationError: 1 error", "  Value error, no such model"],
    ),
    "arguments": ("usage: x\nx.py: error: unrecognized arguments: --y\n", ["x.py: error: unrecognized arguments: --y"]),
    "router": (
        "2026-12-03 09:00:00  INFO up\n2026-12-03 09:00:01 ERROR vllm_router: bind failed\nbye\n",
        ["2026-12-03 09:00:01 ERROR vllm_router: bind failed"],
    ),
    "rust": ("thread 'main' panicked at src/main.rs:3:\nboom\n", ["thread 'main' panicked at src/main.rs:3:"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_error(tmp_path: Path, name: str) -> None:
    text, shown = CASES[name]
    log = tmp_path / "engine-0.log"
    log.write_text(text)
    assert log_error(log).splitlines() == ["", f"first error in {log}:", *shown]


def test_without_an_error_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine-0.log"
    log.write_text("".join(f"line {n}\n" for n in range(40)))
    shown = log_error(log).splitlines()
    assert shown[1] == f"no error in {log}, its last lines:"
    assert shown[2:] == [f"line {n}" for n in range(25, 40)]


def test_an_empty_log_and_none(tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    assert log_error(tmp_path / "empty.log") == f"\n({tmp_path / 'empty.log'} is empty)"
    assert log_error(tmp_path / "none.log") == ""
