"""The measured side of plan.py: a trainer rank or an engine in a process of its own, its peak memory phase by phase.

    python benchmarks/plan_side.py {build|trainer|engine} --model FOLDER ...

Answers one question a phase with its peak in bytes while it runs once: the resident set, and the memory files that the
process has written (the buffers that weights are sent from).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common import answer, questions

PROMPT, RESPONSE = 128, 128
Phases = Mapping[str, Callable[[], object]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("build", "trainer", "engine"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--size", help="JSON of a Qwen3 configuration")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--config", type=Path, help="JSON of vime_core.config.dump.to_plain")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    if args.side == "build":
        build(args.model, json.loads(args.size), args.dtype)
        return
    phases: dict[str, Callable[[], object]] = {}
    if args.side == "trainer":
        phases |= trainer_phases(args)
    for question in questions():
        if args.side == "engine" and not phases:  # its start is part of the first question
            answer(peak_of(lambda: phases.update(engine_phases(args))))
        else:
            answer(peak_of(phases[question["phase"]]))


def build(folder: str, size: dict[str, Any], dtype: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    dense = "num_experts" not in size
    model = Qwen3ForCausalLM(Qwen3Config(**size)) if dense else Qwen3MoeForCausalLM(Qwen3MoeConfig(**size))
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def trainer_phases(args: argparse.Namespace) -> Phases:
    import torch
    from trainer_sides import make_samples, step_batch

    from vime_core.config import from_plain
    from vime_core.devices import CpuBackend
    from vime_core.plugin import Plugins
    from vime_core.training import TrainerWorker

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    config = from_plain(json.loads(args.config.read_text()))
    worker = TrainerWorker(config, Plugins.load(autoload=False, environ={}), CpuBackend(), args.rank)
    worker.setup(f"127.0.0.1:{args.port}", args.model, None, 100)
    batch, versions = step_batch(make_samples(args.model, [[PROMPT, RESPONSE]] * args.samples)), iter(range(1, 100))
    micro = [list(range(at, at + args.samples // 2)) for at in (0, args.samples // 2)]
    return {
        "train": lambda: worker.train(0, batch),
        "log_probs": lambda: worker.step.passes.logprobs(batch, micro),
        "sync": lambda: worker.publish(next(versions)),
    }


def engine_phases(args: argparse.Namespace) -> Phases:
    """vLLM with the arguments and the environment that the direct transport gives it."""
    from vime_core.config import from_plain
    from vime_core.devices import CpuBackend

    device, config = CpuBackend(), from_plain(json.loads(args.config.read_text()))
    os.environ.update(device.environment("engine"))
    from vllm import LLM, SamplingParams

    dtype = "bfloat16" if config.megatron.bf16 else "float32"
    more: dict[str, Any] = {
        "dtype": dtype,
        "max_model_len": 4096,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
    }
    engine = LLM(args.model, **more, **device.engine_arguments())
    prompts: list[Any] = [{"prompt_token_ids": list(range(5, 5 + PROMPT))} for _ in range(args.samples)]
    sampling = SamplingParams(max_tokens=RESPONSE, ignore_eos=True, detokenize=False)
    return {"rollout": lambda: engine.generate(prompts, sampling, use_tqdm=False)}


def peak_of(phase: Callable[[], object]) -> int:
    """Bytes of the largest resident set while the phase runs (the kernel's high-water mark, reset before) without what
    it maps of memory files, and of these files after it."""
    Path("/proc/self/clear_refs").write_text("5")
    phase()
    return _figure("VmHWM") - _figure("RssShmem") + sum(_memory_files().values())


def _figure(name: str) -> int:
    """Bytes, of this process."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, f"the kernel does not tell {name}"
    return int(found.group(1)) * 1024


def _memory_files() -> dict[int, int]:
    """inode -> bytes; a file may be open several times."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone again
            if os.readlink(link).startswith("/memfd:"):
                file = os.stat(link)
                found[file.st_ino] = file.st_blocks * 512
    return found


if __name__ == "__main__":
    main()
