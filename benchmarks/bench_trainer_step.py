"""Tokens per second of a training step: our Megatron trainer against plain Hugging Face on the same samples.

    python benchmarks/bench_trainer_step.py [--models smollm2 tiny] [--threads 2] [--steps 2]

64 samples with the lengths of real responses (a long tail). Both sides take turns in one run. The plain side pads each
micro-batch to its longest sample; several micro-batch sizes may be given, and the fastest counts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from common import Child, Cost, heading, scratch, table

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2", "tiny"], choices=("smollm2", "tiny"))
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--steps", type=int, default=2, help="measured steps a side, after one to warm up")
    parser.add_argument("--micro-batch", nargs="+", type=int, default=[8], help="of the plain side")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of our packed micro-batch")
    args = parser.parse_args()
    heading("Training step: vime (Megatron, packed) against plain Hugging Face (padded)")
    rows = []
    with scratch() as folder:
        for model in args.models:
            path, dtype, lengths = prepare(model, folder)
            for threads in args.threads:
                rows += compare(args, folder, (model, path, dtype), lengths, threads)
    table(["model", "side", "threads", "tokens/s", "wall s", "CPU s", "against best plain"], rows)


def prepare(model: str, folder: Path) -> tuple[Path, str, list[tuple[int, int]]]:
    """(folder, dtype, lengths of prompt and response)."""
    draw = random.Random(0)
    if model == "smollm2":
        from vime_cli.quickstart.smollm2 import checkpoint

        # A log-normal tail, cut at 128: mean about 36, as SmolLM2's own responses to short questions are.
        return checkpoint(), "bfloat16", [(44, min(128, max(3, int(draw.lognormvariate(3.1, 1.0))))) for _ in range(64)]
    from vime_cli.quickstart.addition import build_model

    build_model(folder / "tiny", seed=0)
    return folder / "tiny", "float32", [(6, draw.choice((3, 4, 4, 4, 6))) for _ in range(1024)]


def compare(
    args: argparse.Namespace, folder: Path, model: tuple[str, Path, str], lengths: list[tuple[int, int]], threads: int
) -> list[list[object]]:
    name, path, dtype = model
    file = folder / "lengths.json"
    file.write_text(json.dumps(lengths))
    tokens = sum(map(sum, lengths))
    common = ["--model", str(path), "--dtype", dtype, "--lengths", str(file), "--max-tokens", str(args.max_tokens)]
    program = [sys.executable, str(HERE / "trainer_sides.py")]
    scale = 1 if name == "smollm2" else 16  # tiny samples: as many as make a padded micro-batch of useful size
    sides = {"vime": [*program, "vime", *common]}
    for size in args.micro_batch:
        command = [*program, "huggingface", *common, "--micro-batch", str(size * scale)]
        sides[f"plain, micro-batch {size * scale}"] = command
    children = {side: Child(command, threads, folder / f"{name}.log") for side, command in sides.items()}
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    try:
        for child in children.values():
            child.ask()
        for _ in range(args.steps):
            for side, child in children.items():
                watch = child.stopwatch()
                child.ask()
                costs[side].append(watch.cost())
    finally:
        for child in children.values():
            child.close()
    medians = {side: Cost.median(found) for side, found in costs.items()}
    best = min(cost.wall for side, cost in medians.items() if side != "vime")
    return [
        [f"{name} {dtype}", side, threads, tokens / cost.wall, cost.wall, cost.cpu, f"{best / cost.wall:.2f}x"]
        for side, cost in medians.items()
    ]


if __name__ == "__main__":
    main()
