"""What the framework itself costs: the share of a step outside generation, log-probs, training and weight sync.

    python benchmarks/bench_overhead.py [--runs quickstart smollm2] [--steps 5]

Two short runs of the recipes as a user runs them. A tiny model is the hard case: everything else is as small as it can
be. The clock is the driver's own (perf/ in docs/metrics.md), so what it calls a phase includes the calls to workers and
whatever waiting is in them; the CPU seconds beside are of all processes from the start of Ray to its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import ROOT, Stopwatch, heading, scratch, table

PARTS: Mapping[str, str] = {
    "generate": "perf/rollout_time",
    "log-probs": "perf/log_probs_time",
    "training": "perf/actor_train_time",
    "sync": "perf/update_weights_time",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=["quickstart", "smollm2"], choices=("quickstart", "smollm2"))
    parser.add_argument("--steps", type=int, default=5, help="steps of each run; the first is not counted")
    args = parser.parse_args()
    heading("Framework overhead")
    rows = []
    with scratch() as folder:
        for name in args.runs:
            steps, cpu, wall = run(name, folder / name, args.steps)
            rows.append(row(name, steps, cpu, wall))
    table(["run", "step s", *PARTS, "overhead", "samples/s", "CPU s / wall s of the run"], rows)


def flags(name: str, steps: int) -> list[str]:
    if name == "smollm2":
        return ["--num-rollout", str(steps), "--eval-interval", "1000", "--skip-eval-before-train"]
    # The warm-up's end is not awaited: for the time of a step it does not matter what the model knows.
    return [
        *("--stage.warmup.num-rollout", "25", "--stage.warmup.stop-when", "eval/addition >= 0"),
        *("--stage.grpo.num-rollout", str(steps), "--stage.grpo.eval-interval", str(steps)),
        *("--stage.warmup.lr-warmup-iters", "1", "--stage.grpo.lr-warmup-iters", "0"),
        *("--stage.grpo.skip-eval-before-train", "--stage.grpo.target", "eval/addition >= 0"),
    ]


def run(name: str, folder: Path, steps: int) -> tuple[list[Mapping[str, float]], float, float]:
    """(metrics of the measured steps, CPU seconds, wall seconds of the run)."""
    recipe = ROOT / "recipes" / f"{name}.toml"
    command = [sys.executable, "-m", "vime_cli.main", "train", str(recipe), "--run-dir", str(folder)]
    with folder.with_suffix(".log").open("w") as log:
        started = time.perf_counter()
        process = subprocess.Popen([*command, *flags(name, steps)], stdout=log, stderr=subprocess.STDOUT)
        watch, cpu = Stopwatch(process.pid), 0.0
        while process.poll() is None:
            time.sleep(0.5)
            cpu = watch.cost().cpu
    if process.returncode:
        raise SystemExit(folder.with_suffix(".log").read_text()[-3000:])
    return read(folder, name)[1:], cpu, time.perf_counter() - started


def read(folder: Path, name: str) -> list[Mapping[str, float]]:
    file = next(path for path in sorted(folder.rglob("metrics.jsonl")) if name == "smollm2" or "grpo" in str(path))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "perf/step_time" in line]


def row(name: str, steps: Sequence[Mapping[str, float]], cpu: float, wall: float) -> list[object]:
    def median(key: str) -> float:
        return statistics.median(step.get(key, 0.0) for step in steps)

    whole = median("perf/step_time")
    shares = [f"{100 * median(key) / whole:.1f} %" for key in PARTS.values()]
    overhead = f"{100 * median('perf/overhead_ratio'):.2f} %"
    return [name, whole, *shares, overhead, median("perf/samples_per_sec"), f"{cpu:.0f} / {wall:.0f}"]


if __name__ == "__main__":
    main()
