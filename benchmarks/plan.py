"""What ``vime plan`` predicts against what processes take, phase by phase.

    python benchmarks/plan.py [--only NAME ...] [--jobs 2]

Each case is a random model trained by the real trainer in fresh processes: a step and two syncs, so that all that stays
is there, then a step, the passes before training and a sync that are measured. Peaks are the kernel's own high-water
marks. A prediction is the sum of what the plan's table lists for that process; "net" is the ratio without the process
itself. The constants of ``cli/vime_cli/plan/machine.py`` were set by looking at cases marked "set" and are judged by
the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Child, heading, scratch, table
from trainer_sides import free_port
from vime_cli.plan.machine import HOST_COSTS, Machine
from vime_cli.plan.needs import needs_of
from vime_cli.plan.phases import engine_parts, trainer_parts
from vime_cli.plan.prompts import Prompts
from vime_cli.plan.shape import ModelShape
from vime_cli.plan.stage_plan import PlanInputs, StagePlan, plan_stage
from vime_cli.units import MIB

from vime_core.config import Config, to_plain
from vime_core.devices import CpuBackend
from vime_core.plugin import Plugins

HERE = Path(__file__).resolve().parent

_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 4096}
SMALL = {**_HEADS, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "vocab_size": 16000}
LARGE = {**_HEADS, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 10, "vocab_size": 32000}
THIN = {**_HEADS, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 16, "vocab_size": 8000}
TP2 = {"megatron": {"tensor_model_parallel_size": 2, "sequence_parallel": True}}
MORE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512, "norm_topk_prob": True}


@dataclass(frozen=True)
class Case:
    """One configuration: sections that differ from the defaults, tokens of a micro-batch, trainer ranks. ``judges``: no
    constant was set by looking at it."""

    size: Mapping[str, Any]
    tokens: int
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ranks: int = 1
    engine: bool = False
    judges: bool = False

    def config(self) -> Config:
        """Two micro-batches a step, of samples with as many prompt as response tokens."""
        config = Config().replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=self.tokens)
        config = config.replace("rollout", rollout_batch_size=self.samples // 8, n_samples_per_prompt=8)
        config = config.replace("cluster", actor_num_gpus_per_node=self.ranks)
        for section, values in self.sections.items():
            config = config.replace(section, **values)
        return config

    @property
    def samples(self) -> int:
        return 2 * self.tokens // 256

    @property
    def phases(self) -> Sequence[str]:
        return ("rollout",) if self.engine else ("train", "log_probs", "sync")

    @property
    def before(self) -> Sequence[str]:
        """Phases that make what stays: the optimizer's state, both buffers of a sync, the engine."""
        return ("rollout",) if self.engine else ("train", "sync", "sync")


BF16 = {"megatron": {"bf16": True}}
FULL = {"recompute_granularity": "full"}
TIED = {"tie_word_embeddings": True}
CASES = {
    "20M float32": Case({**SMALL, **TIED}, 2048),
    "20M float32, reference": Case({**SMALL, **TIED}, 2048, {"algorithm": {"use_kl_loss": True}}),
    "48M bfloat16": Case({**LARGE, **TIED}, 4096, BF16),
    "47M bfloat16, 8 experts": Case({**SMALL, **EXPERTS}, 2048, BF16),
    "engine, 48M bfloat16": Case({**LARGE, **TIED}, 2048, BF16, engine=True),
    # judges
    "14M float32, 16 thin layers": Case({**THIN, **TIED}, 1024, judges=True),
    "53M bfloat16, vocabulary of 64,000": Case(
        {**SMALL, "vocab_size": 64000}, 1024, {**BF16, "train": {"log_probs_chunk_size": 256}}, judges=True
    ),
    "20M bfloat16, recomputed": Case({**SMALL, **TIED}, 2048, {"megatron": {"bf16": True, **FULL}}, judges=True),
    "26M float32, critic": Case(SMALL, 1024, {"algorithm": {"advantage_estimator": "ppo"}}, judges=True),
    "62M float32, 16 experts": Case({**SMALL, **EXPERTS, **MORE}, 1024, judges=True),
    "48M float32, tensor parallel 2": Case({**LARGE, **TIED}, 1024, TP2, ranks=2, judges=True),
    "engine, 20M float32": Case({**SMALL, **TIED}, 2048, engine=True, judges=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time; peaks do not depend on it")
    args = parser.parse_args()
    heading("Memory: vime plan against the measured peak")
    clock = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = [row for rows in pool.map(rows_of, args.only) for row in rows]
    table(["configuration", "constants", "phase", "predicted MiB", "measured MiB", "ratio", "net"], rows)
    print(f"{time.perf_counter() - clock:.0f} s")


def rows_of(name: str) -> list[list[object]]:
    case = CASES[name]
    with scratch() as folder:
        build(folder / "model", case)
        planned = plan_of(folder / "model", case)
        measured = measure(folder, case)
    print(f"{name}: measured", file=sys.stderr, flush=True)
    return [row(name, planned, phase, peak, case) for phase, peak in measured.items()]


def row(name: str, planned: StagePlan, phase: str, peak: int, case: Case) -> list[object]:
    predicted, base = predict(planned, phase, case.engine)
    net = (predicted - base) / (peak - base)
    how = "judged" if case.judges else "set"
    return [name, how, phase, predicted / MIB, peak / MIB, f"{predicted / peak:.2f}", f"{net:.2f}"]


def predict(planned: StagePlan, phase: str, engine: bool) -> tuple[int, int]:
    """(bytes of the process, those of the bare process among them)."""
    if engine:
        return sum(part.bytes for part in engine_parts(planned, phase, "engine 0")), HOST_COSTS.engine
    rank = planned.placement.ranks[0]
    return sum(part.bytes for part in trainer_parts(planned, rank, phase)), HOST_COSTS.trainer


def plan_of(model: Path, case: Case) -> StagePlan:
    config = case.config()
    shape = ModelShape.of(json.loads((model / "config.json").read_text()))
    machine = Machine("cpu", None, "not compared with a limit", shared=True, per_node=8)
    plugins = Plugins.load(autoload=False, environ={})
    arguments = CpuBackend().engine_arguments()
    return plan_stage(
        PlanInputs(config, shape, needs_of(config, plugins), machine, arguments, Prompts.given((128,)), (128,))
    )


# the other side --------------------------------------------------------------------------------------------------
def build(folder: Path, case: Case) -> None:
    """A random model, made in a process of its own."""
    dtype = "bfloat16" if case.config().megatron.bf16 else "float32"
    command = [sys.executable, str(HERE / "plan_side.py"), "build", "--model", str(folder), "--dtype", dtype]
    subprocess.run([*command, "--size", json.dumps(dict(case.size))], check=True, capture_output=True)


def measure(folder: Path, case: Case) -> dict[str, int]:
    """Phase -> bytes at its peak, of rank 0."""
    (folder / "config.json").write_text(json.dumps(to_plain(case.config())))
    common = ["--model", str(folder / "model"), "--config", str(folder / "config.json"), "--port", str(free_port())]
    side = "engine" if case.engine else "trainer"
    command = [sys.executable, str(HERE / "plan_side.py"), side, *common, "--samples", str(case.samples)]
    environment = CpuBackend().environment("engine" if case.engine else "trainer")
    children = [Child([*command, "--rank", str(i)], 1, folder / f"{i}.log", environment) for i in range(case.ranks)]
    try:
        peaks: dict[str, int] = {}
        for phase in (*case.before, *case.phases):
            for child in children:
                child.send(phase=phase)
            answers = [child.receive() for child in children]
            peaks[phase] = answers[0]
        return peaks
    finally:
        for child in children:
            child.close()


if __name__ == "__main__":
    main()
