"""Peak memory of log-probs and entropies: chunked against all logits at once, each in a process of its own.

    python benchmarks/bench_logprobs.py [--tokens 4096] [--vocabulary 151936] [--hidden 256] [--chunks 256 1024]

Forward and backward through the output layer of a Qwen3 vocabulary, bfloat16 weights, float32 log-softmax. The peer
keeps what autograd keeps (`torch.log_softmax` of the float32 logits); "all" is vime's function without chunks. Memory
is the process's peak beyond what it held before the first logit; the limit beside it is one chunk in float32.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import heading, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--chunks", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args)))
        return
    heading("Peak memory of log-probs and entropies", ("torch",))
    sides = ["torch", "all", *map(str, args.chunks)]
    report(args, {side: run(args, side) for side in sides})


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """One side in a fresh process, whose peak is its own."""
    numbers = ["--tokens", args.tokens, "--vocabulary", args.vocabulary, "--hidden", args.hidden, "--side", side]
    done = subprocess.run([sys.executable, __file__, *map(str, numbers)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(args: argparse.Namespace) -> dict[str, float]:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = torch.randn(args.tokens, args.hidden, dtype=torch.bfloat16).requires_grad_()
    weight = (0.05 * torch.randn(args.vocabulary, args.hidden)).bfloat16().requires_grad_()
    targets = torch.randint(args.vocabulary, (args.tokens,))
    compute = side_of(args.side, args.vocabulary)
    before, started = _peak(), time.perf_counter()
    logp, entropy = compute(rows, weight, targets)
    (logp.sum() + 0.01 * entropy.sum()).backward()
    seconds = time.perf_counter() - started
    return {"MiB": _peak() - before, "seconds": seconds, "sum": float(logp.detach().double().sum())}


def side_of(side: str, vocabulary: int) -> Callable[..., tuple[Any, Any]]:
    import torch

    from vime_core.training import ChunkedSoftmax, VocabShard, token_logprobs

    def plain(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax((rows @ weight.T).float(), -1)
        return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

    def ours(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chunk = -1 if side == "all" else int(side)
        logp, entropy = token_logprobs(
            rows, weight, targets, VocabShard(0, vocabulary), ChunkedSoftmax(1.0, chunk, True)
        )
        assert entropy is not None
        return logp, entropy

    return plain if side == "torch" else ours


def _peak() -> float:
    """MiB, the most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(args: argparse.Namespace, found: dict[str, dict[str, float]]) -> None:
    names = {"torch": "torch, all logits", "all": "vime, --log-probs-chunk-size -1"}
    peer, rows = found["torch"], []
    for side, numbers in found.items():
        tokens = args.tokens if side in names else int(side)
        chunk = tokens * args.vocabulary * 4 / 2**20
        name = names.get(side, f"vime, --log-probs-chunk-size {side}")
        gap = abs(numbers["sum"] - peer["sum"]) / args.tokens
        rows.append([name, numbers["MiB"], f"{numbers['MiB'] / peer['MiB']:.2f}x", chunk, numbers["seconds"], gap])
    columns = ["side", "peak MiB", "of the peer", "float32 logits of a chunk, MiB", "s", "mean log-prob off by"]
    table(columns, rows)


if __name__ == "__main__":
    main()
