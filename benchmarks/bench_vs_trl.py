"""A whole GRPO step of vime against one of TRL 1.16 on the same model, prompts, samples, lengths and cores.

    python benchmarks/bench_vs_trl.py --trl-python OTHER_VENV/bin/python [--steps 3] [--threads 2]

SmolLM2-135M-Instruct in bfloat16, reasoning_gym's basic_arithmetic, 8 prompts x 8 samples of at most 128 tokens at
temperature 1, reasoning_gym's scorer. Both sides are up at the same time and take turns step by step, so that a slow
minute of the machine hits both; the first step of each is not counted. TRL lives in an environment of its own, since
its dependencies and vLLM's do not agree: trl==1.16.0, accelerate, datasets, reasoning-gym and a CPU torch.
"""

from __future__ import annotations

import abc
import argparse
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

from common import Child, heading, scratch, table

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "recipes" / "smollm2.toml"


def main() -> None:
    args = arguments()
    heading("Whole GRPO step: vime against TRL")
    with scratch() as folder:
        sides: dict[str, Side] = {"vime": Vime(args, folder)}
        if args.trl_python:
            sides["TRL"] = Trl(args, folder)
        else:
            print("no --trl-python: our side only, nothing to compare with")
        try:
            steps = take_turns(sides, args.steps)
        finally:
            for side in sides.values():
                side.close()
        print(threads(args, folder / "run" / "config.toml"))
    report(steps)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="interpreter of an environment with TRL")
    parser.add_argument("--steps", type=int, default=3, help="measured steps a side, after one to warm up")
    parser.add_argument("--trl-threads", type=int, default=2, help="OMP_NUM_THREADS of TRL")
    parser.add_argument("--trl-micro-batch", type=int, default=8, help="samples of TRL's forward and backward")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("vime", nargs="*", help="further flags of vime train, after --")
    return parser.parse_args()


class Side(abc.ABC):
    """A run that takes one step when it is asked to."""

    child: Child

    def step(self) -> dict[str, float]:
        watch = self.child.stopwatch()
        metrics = self.child.ask()
        cost = watch.cost()
        return {**self.figures(metrics), "cpu": cost.cpu, "seen": cost.wall}

    @abc.abstractmethod
    def figures(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Of one step, of what the child answered."""

    def close(self) -> None:
        self.child.close()


class Vime(Side):
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        command = [sys.executable, "-m", "vime_cli.main", "train", str(RECIPE), "--plugin", str(HERE / "turns.py")]
        command += ["--run-dir", str(folder / "run"), "--num-rollout", str(args.steps + 1), "--progress", "off"]
        command += ["--skip-eval-before-train", "--eval-interval", "1000", "--no-rollout-shuffle", "--lr", str(args.lr)]
        command += ["--rollout-max-response-len", str(args.max_tokens), *args.vime]
        self.child = Child(command, 1, folder / "vime.log")

    def figures(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Its own clock ends a step after the sync, before metrics are written."""
        return {
            "wall": metrics["perf/step_time"],
            "length": metrics["rollout/response_len/mean"],
            "reward": metrics["rollout/raw_reward"],
            "generate": metrics["perf/rollout_time"],
            "train": metrics["perf/train_time"],
            "sync": metrics["perf/update_weights_time"],
            "overhead": metrics["perf/overhead_ratio"],
            "gap": metrics["train/train_rollout_logprob_abs_diff"],
        }


class Trl(Side):
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        from vime_cli.quickstart.smollm2 import checkpoint, write_task

        data = folder / "trl.jsonl"
        write_task(data, 8 * (args.steps + 2), seed=7)  # as the recipe's own preparation does
        command = [args.trl_python, str(HERE / "trl_side.py"), "--model", str(checkpoint()), "--data", str(data)]
        command += ["--work", str(folder / "trl"), "--steps", str(args.steps + 1), "--lr", str(args.lr)]
        command += ["--max-tokens", str(args.max_tokens), "--micro-batch", str(args.trl_micro_batch)]
        self.child = Child(command, args.trl_threads, folder / "trl.log")

    def figures(self, metrics: dict[str, Any]) -> dict[str, float]:
        return {name: metrics[name] for name in ("wall", "length", "reward")}


def take_turns(sides: dict[str, Any], count: int) -> dict[str, list[dict[str, float]]]:
    """Measured steps by side. Every line says what the waiting side used meanwhile: it should be next to nothing."""
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(count + 1):
        for name, side in sides.items():
            waiting = [other.child.stopwatch() for other in sides.values() if other is not side and number]
            found = side.step()
            idle = sum(watch.cost().cpu for watch in waiting)
            kind = "warm-up" if number == 0 else f"step {number}"
            times = f"{found['wall']:.1f} s, {found['cpu']:.1f} CPU s (waiting side {idle:.1f})"
            print(f"  {name} {kind}: {times}, mean length {found['length']:.1f}", flush=True)
            if number:
                steps[name].append(found)
    return steps


def threads(args: argparse.Namespace, resolved: Path) -> str:
    """Which threads each side had; each its best."""
    cluster = tomllib.loads(resolved.read_text())["cluster"]
    ours = f"vime {cluster['trainer_cpu_threads']} in the trainer, {cluster['engine_cpu_threads']} in the engine"
    return f"\nthreads: {ours}; TRL {args.trl_threads}, micro-batch {args.trl_micro_batch}"


def report(steps: dict[str, list[dict[str, float]]]) -> None:
    def median(name: str, key: str) -> float:
        return statistics.median(step[key] for step in steps[name])

    rows = [
        [
            name,
            median(name, "wall"),
            median(name, "cpu"),
            median(name, "length"),
            median(name, "reward"),
            1000 * median(name, "wall") / (64 * median(name, "length")),
        ]
        for name in steps
    ]
    table(["side", "wall s", "CPU s", "mean length", "reward", "ms a token"], rows)
    if "TRL" in steps:
        pairs = list(zip(steps["vime"], steps["TRL"], strict=True))
        wall = statistics.median(trl["wall"] / vime["wall"] for vime, trl in pairs)
        cpu = statistics.median(trl["cpu"] / vime["cpu"] for vime, trl in pairs)
        token = statistics.median(trl["wall"] / trl["length"] / (vime["wall"] / vime["length"]) for vime, trl in pairs)
        print(
            f"vime against TRL (median of pairs): wall {wall:.2f}x, CPU {cpu:.2f}x, wall a response token {token:.2f}x"
        )
    shares = ", ".join(f"{key} {median('vime', key):.1f} s" for key in ("generate", "train", "sync"))
    print(f"vime by phase: {shares}; overhead {100 * median('vime', 'overhead'):.2f} % of the step")
    print(f"log-prob gap, trainer against sampler: {median('vime', 'gap'):.4f} (bfloat16)")


if __name__ == "__main__":
    main()
