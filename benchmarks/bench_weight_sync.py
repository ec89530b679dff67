"""GB/s of a weight sync, in its parts and as a whole, against a copy of the same bytes in memory.

    python benchmarks/bench_weight_sync.py [--models tiny large] [--pushes 7]

The real stack: a Megatron trainer rank and a vLLM engine as Ray actors, shared memory between them, and the whole
transaction (export, copy, checksum, verify, load, canary on both sides, commit). The limit is torch copying the same
bytes from one place in memory to another, warm, with one thread, measured between the pushes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Child, build_qwen3, heading, scratch, table

if TYPE_CHECKING:
    from vime_core.api import Receipt
    from vime_core.pipeline import RunStack

HERE = Path(__file__).parent

#: phase of the receipt -> what it is
PHASES: Mapping[str, str] = {
    "publish": "export, then the same (trainer)",
    "receive": "map and verify, with the wait for it (engine)",
    "load": "load (engine)",
    "transfer": "carry, verify, load, with the calls",
    "canary": "canary on both sides",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "large"], choices=("tiny", "large"))
    parser.add_argument("--pushes", type=int, default=7, help="measured pushes, after two to warm up")
    args = parser.parse_args()
    heading("Weight sync through shared memory")
    with scratch() as folder:
        for name in args.models:
            dtype = "float32" if name == "tiny" else "bfloat16"
            model = build(name, folder, dtype)
            receipts, copies, writes = measure(model, dtype == "bfloat16", folder, args.pushes)
            report(name, dtype, receipts, copies, writes)


def build(name: str, folder: Path, dtype: str) -> Path:
    if name == "tiny":
        from vime_cli.quickstart.addition import build_model

        build_model(folder / name, seed=0, dtype=dtype)
        return folder / name
    return build_qwen3(folder / name, "qwen3-190m", dtype)


def measure(model: Path, bf16: bool, folder: Path, pushes: int) -> tuple[list[Any], list[float], list[float]]:
    """(receipts, seconds of each copy of as many bytes, seconds of each write alone)."""

    from safetensors.torch import load_file

    from vime_core.observe import PhaseClock, RunFolder
    from vime_core.pipeline import stack
    from vime_core.plugin import Plugins
    from vime_core.runtime import Interrupts

    plugins = Plugins.load(autoload=False, environ={})
    run = RunFolder.create(str(folder / f"{model.name}-run"), "bench", datetime.datetime.now())
    config = configuration(model, bf16, folder)
    tensors = {name: tensor for file in model.glob("*.safetensors") for name, tensor in load_file(file).items()}
    receipts, copies, writes = [], [], []
    with (
        contextlib.closing(Carrying(config, folder / f"{model.name}-engine.log")) as carrying,
        stack(config, plugins, run, Interrupts(), PhaseClock()) as running,
    ):
        for version in range(2):
            carrying.seconds(tensors, version)
            copy = Copy(pushed(running, version).nbytes)
        for version in range(2, 2 + pushes):
            copies.append(copy.seconds())
            writes.append(carrying.seconds(tensors, version))
            receipts.append(pushed(running, version))
    return receipts, copies, writes


def pushed(running: RunStack, version: int) -> Receipt:
    """What a push ended in; there are engines here."""
    receipt = running.push(version)
    assert receipt is not None, "a run with engines pushes to them"
    return receipt


def configuration(model: Path, bf16: bool, folder: Path) -> Any:
    from vime_cli.quickstart.addition import write_problems

    from vime_core.config import Config

    data = folder / "problems.jsonl"
    write_problems(data, [(a, b) for a in range(10) for b in range(10)])
    config = Config(vllm={"max_model_len": 64, "kv_cache_memory_bytes": 64 << 20})
    config = config.replace("model", hf_checkpoint=str(model)).replace("megatron", bf16=bf16)
    config = config.replace("data", prompt_data=[str(data)], input_key="prompt", label_key="answer")
    config = config.replace("rollout", rollout_batch_size=8, n_samples_per_prompt=8, num_rollout=100, reward="exact")
    config = config.replace("rollout", rollout_max_response_len=6, rollout_max_context_len=64)
    return config.replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=1024)


class Carrying:
    """Both ends of the transport and nothing else: packed here, mapped and verified in a process beside it, as in a
    run."""

    def __init__(self, config: Any, log: Path) -> None:
        from vime_core.weights import RendezvousStore, make_publisher

        self._point = RendezvousStore("127.0.0.1")
        self._point.open()
        self._sender = make_publisher(config)
        place = {"kind": "shared_memory", "host": self._point.host, "port": self._point.port, "group": "bench"}
        self._terms = {**place, "world": 2, "bucket": config.sync.update_weight_buffer_size, "timeout": 60.0}
        self._child = Child([sys.executable, str(HERE / "weights_side.py")], 1, log)
        self._child.ask(**self._terms)

    def seconds(self, tensors: Mapping[str, Any], version: int) -> float:
        """Of one version, until the receiver has it all."""
        self._sender.open({**self._terms, "base": version - 1 if version else None})
        self._child.ask(version=version)
        started = time.perf_counter()
        self._sender.publish(tensors.items(), version)
        self._child.receive()
        return time.perf_counter() - started

    def close(self) -> None:
        self._child.close()
        self._sender.close()
        self._point.close()


class Copy:
    """The physical limit: one thread, one pass, both places already mapped."""

    def __init__(self, nbytes: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._from = torch.ones(nbytes, dtype=torch.uint8)
        self._to = torch.zeros(nbytes, dtype=torch.uint8)

    def seconds(self) -> float:
        """Of the best of three; each copies at least 64 MB, in several passes where the tensor is small."""
        passes = max(1, (64 << 20) // len(self._from))
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(passes):
                self._to.copy_(self._from)
            best = min(best, (time.perf_counter() - started) / passes)
        return best


def report(name: str, dtype: str, receipts: list[Any], copies: list[float], writes: list[float]) -> None:
    nbytes, limit = receipts[0].nbytes, statistics.median(copies)
    print(f"{name} {dtype}: {receipts[0].names} tensors, {nbytes / 1e9:.4f} GB, {len(receipts)} pushes (medians)")
    rows = [["copy in memory (limit)", 1e3 * limit, nbytes / limit / 1e9, "1"]]
    times = {"carried alone: copy, checksum, map, verify": statistics.median(writes)}
    times |= {text: statistics.median(r.phases[phase] for r in receipts) for phase, text in PHASES.items()}
    times["whole push"] = statistics.median(r.seconds for r in receipts)
    for text, seconds in times.items():
        rows.append([text, 1e3 * seconds, nbytes / seconds / 1e9, f"{limit / seconds:.2f}"])
    table(["part", "ms", "GB/s", "of the limit"], rows)


if __name__ == "__main__":
    main()
