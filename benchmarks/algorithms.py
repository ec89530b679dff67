"""Final held-out accuracy of every algorithm on the quickstart's task: same start, same budget, same seeds.

    python benchmarks/algorithms.py [--algorithms grpo gspo ...] [--seeds 7] [--steps 60] [--folder FOLDER]

The quickstart's warm-up is run once; each algorithm then trains from that model for the same number of steps, of the
same prompts, with the recipe's batch and learning rate and its own defaults otherwise. Distillation gets the model that
GRPO ended with as its teacher. Results are kept in FOLDER as they come, so an interrupted table goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import ROOT, heading, table

NAMES = (
    *("grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo"),
    *("reinforce_plus_plus", "reinforce_plus_plus_baseline", "ppo", "opd"),
    *("reinforce", "opo", "maxrl", "gmpo", "dppo"),
)
#: as in the recipe, whose value the run that makes the start has no room for
WARM_UP = "20"
#: what an algorithm needs here beyond its name; {teacher} is the folder of GRPO's final model
FLAGS: Mapping[str, Sequence[str]] = {
    "ppo": ("--critic-lr", "2e-3", "--num-critic-only-steps", "5"),
    "opd": ("--opd-type", "megatron", "--opd-teacher-load", "{teacher}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=NAMES, metavar="NAME", help="default: all of the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="for runs and results; default: a temporary one")
    args = parser.parse_args()
    heading(f"Algorithms on two-digit addition, {args.steps} steps each")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="vime-algorithms-"))
    folder.mkdir(parents=True, exist_ok=True)
    start = warm_up(folder)
    for seed in args.seeds:
        for name in args.algorithms:
            result = cached(folder, start, name, seed, args.steps)
            print(f"  {name} seed {seed}: {result['before']:.3f} -> {result['after']:.3f}", flush=True)
    report(folder, args)


def warm_up(folder: Path) -> Path:
    """The resolved configuration of the recipe's second stage, which can be run again by itself, without what the
    recipe sets for GRPO alone."""
    run = folder / "start"
    if not (run / "grpo" / "report.txt").is_file():
        flags = ["--stage.grpo.num-rollout", "1", "--stage.grpo.target", "eval/addition >= 0"]
        flags += ["--stage.grpo.lr-warmup-iters", "0"]
        train(run, [str(ROOT / "recipes" / "quickstart.toml"), *flags])
    written = (run / "grpo" / "config.toml").read_text().splitlines(keepends=True)
    config = folder / "start.toml"
    config.write_text("".join(line for line in written if not line.startswith("eps_clip_high")))
    return config


def cached(folder: Path, start: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    kept = folder / f"{name}-{seed}-{steps}.json"
    if not kept.is_file():
        kept.write_text(json.dumps(measure(folder, start, name, seed, steps)))
    result: dict[str, Any] = json.loads(kept.read_text())
    return result


def measure(folder: Path, start: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    """Train and read the evaluations."""
    run = folder / f"run-{name}-{seed}-{steps}"
    shutil.rmtree(run, ignore_errors=True)  # of an interrupted table
    teacher = folder / f"run-grpo-{seed}-{steps}" / "hf"
    flags = [flag.format(teacher=teacher) for flag in FLAGS.get(name, ())]
    flags += ["--advantage-estimator", name, "--seed", str(seed), "--rollout-seed", str(seed)]
    flags += ["--num-rollout", str(steps), "--eval-interval", str(steps), "--stop-when", "eval/addition >= 2"]
    flags += [
        "--target",
        "eval/addition >= 0",
        "--lr-warmup-iters",
        WARM_UP,
        "--save-interval",
        "1000000",
        "--save",
        "{run}/checkpoints",
    ]
    flags += ["--save-hf", "{run}/hf", "--no-save-samples", "--no-save-loss-inputs"]
    train(run, [str(start), *flags])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [line["eval/addition"] for line in lines if "eval/addition" in line]
    trained = [line for line in lines if "train/grad_norm" in line]
    return {
        "before": scores[0],
        "after": scores[-1],
        "best_reward": max(line["rollout/raw_reward"] for line in lines if "rollout/raw_reward" in line),
        "gap": max(line["train/train_rollout_logprob_abs_diff"] for line in trained),
        "skipped": sum(line.get("train/skipped_steps", 0.0) for line in trained),
    }


def train(run: Path, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "vime_cli.main", "train", *arguments, "--run-dir", str(run)]
    log = run.with_suffix(".log")
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-3000:]}")


def report(folder: Path, args: argparse.Namespace) -> None:
    rows = []
    for name in args.algorithms:
        found = [json.loads((folder / f"{name}-{seed}-{args.steps}.json").read_text()) for seed in args.seeds]
        after = [result["after"] for result in found]
        mean = sum(after) / len(after)
        rows.append([name, found[0]["before"], mean, min(after), max(after), max(r["gap"] for r in found)])
    print()
    table(["algorithm", "before", "after (mean)", "least", "most", "worst log-prob gap"], rows)


if __name__ == "__main__":
    main()
