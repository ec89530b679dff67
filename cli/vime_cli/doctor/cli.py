"""``vime doctor``: is everything here that a run needs? A line a finding with its fix; exit status 1 if not."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from vime_core.plugin import load_target


def doctor(argv: list[str]) -> int:
    """Run ``vime doctor ...``."""
    chosen = _parser().parse_args(argv)
    context = load_target("vime_cli.doctor.context:DoctorContext")(
        tuple(chosen.plugin), chosen.device, chosen.run_dir, ports=tuple(chosen.port)
    )
    examined = load_target("vime_cli.doctor.doctor:doctor_for")(context, chosen.only, chosen.hf_checkpoint)
    report = load_target("vime_cli.doctor.report")
    if chosen.json:
        with contextlib.redirect_stdout(sys.stderr):  # what plugins print is no JSON
            list(examined.run())
    else:
        for result in examined.run():
            print(report.line(result), flush=True)
    print(report.as_json(examined) if chosen.json else report.summary(examined))
    status: int = examined.exit_code
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vime doctor",
        description="Look for what would keep a run from working here. docs/doctor.md explains every line.",
        epilog="Exit status: 0 nothing is broken, 1 something is, 2 the command line is wrong.",
    )
    add = parser.add_argument
    add("--plugin", action="append", default=[], metavar="P", help="a plugin that the run would load, as vime train")
    add("--device", metavar="NAME", help="look at this device; default: the one that a run would take")
    add("--json", action="store_true", help="one JSON object instead of lines")
    add("--only", action="append", default=[], metavar="CHECK", help="run this check alone; may be repeated")
    add("--hf-checkpoint", type=Path, metavar="D", help="the model, whose size says how much memory and disk it takes")
    add("--run-dir", type=Path, default=Path("runs"), metavar="D", help="folder in which runs lie; default: runs")
    add("--port", action="append", type=int, default=[], metavar="N", help="a port that a server is to have")
    return parser
