"""Real engines on tiny models, and a trainer that stands on Hugging Face, whose answers are the reference."""

from __future__ import annotations

import logging
import os
import runpy
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from vime_core.config.sections import Config
from vime_core.inference.vllm.upstream_fixes import ROUTED_EXPERTS
from vime_core.inference.vllm.version import vllm_version

#: for tests of what only some versions of vLLM can do on the CPU
needs_routed_experts = pytest.mark.skipif(
    not ROUTED_EXPERTS.applies(vllm_version()), reason=f"vLLM {vllm_version()} returns no experts on the CPU"
)

SUPPORT = Path(__file__).parents[1] / "support"


def reference(folder: Path) -> Any:
    """The folder's model in Hugging Face, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(model: Any, prompt: list[int], length: int) -> list[int]:
    import torch

    ids = list(prompt)
    with torch.no_grad():
        for _ in range(length):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def logprobs(model: Any, tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Of tokens[1:] given their prefixes."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1].float() / temperature
    rows = torch.log_softmax(logits, -1)
    return [float(rows[place, token]) for place, token in enumerate(tokens[1:])]


def boundary_is_right(reply: Any, prompt: list[int], old: int, new: int, trainer: Any) -> None:
    """An update came in the middle: from there on keys, values and log-probs are the new weights' alone."""
    assert set(reply.versions) == {old, new}
    assert reply.versions == sorted(reply.versions)
    boundary = reply.versions.index(new)
    right = logprobs(trainer.model, prompt + reply.tokens)
    assert reply.logprobs[boundary:] == pytest.approx(right[len(prompt) + boundary - 1 :], abs=1e-4)


def processes(*marks: str) -> dict[int, str]:
    """pid -> command line of the processes whose command line has one of ``marks``, and of all below them."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if any(mark in line for mark in marks):
            found |= {below.pid: line for below in [process, *_below(process)]}
    return found


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def assert_gone(pids: Iterable[int], deadline: float = 20.0) -> None:
    end = time.monotonic() + deadline
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.2)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class FolderTrainer:
    """Publishes the weights of a Hugging Face folder; ``load`` another one between syncs."""

    def __init__(self, folder: Path, config: Config) -> None:
        from vime_core.weights.transports.host import make_publisher

        self.publisher = make_publisher(config)
        self.load(folder)

    def load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        self.model = reference(folder)
        self.tensors = {
            name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()
        }

    def open(self, terms: Any) -> None:
        self.publisher.open(terms)

    def publish(self, version: int) -> Any:
        return self.publisher.publish(self.tensors.items(), version)

    def score(self, tokens: list[int]) -> list[float]:
        return logprobs(self.model, tokens)

    def close(self) -> None:
        self.publisher.close()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sets of weights of a tiny Qwen3, A and B."""
    build = runpy.run_path(str(SUPPORT / "models.py"))["build_model"]
    root = tmp_path_factory.mktemp("models")
    return {name: build(root / name, "qwen3", seed=seed) for name, seed in (("A", 1), ("B", 2))}


@pytest.fixture(scope="session")
def moe_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    build = runpy.run_path(str(SUPPORT / "models.py"))["build_model"]
    root = tmp_path_factory.mktemp("moe")
    return {name: build(root / name, "qwen3_moe", seed=seed) for name, seed in (("A", 1), ("B", 2))}


@pytest.fixture(scope="session")
def tied_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Head and embedding are one parameter."""
    build = runpy.run_path(str(SUPPORT / "models.py"))["build_model"]
    root = tmp_path_factory.mktemp("tied")
    return {name: build(root / name, "qwen3", tied=True, seed=seed) for name, seed in (("A", 1), ("B", 2))}


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, namespace="vime")
    yield
    ray.shutdown()


def configuration(engines: int = 1, tensor_parallel: int = 1, transport: str = "auto", **sync: Any) -> Config:
    config = Config(vllm={"kv_cache_memory_bytes": 16 << 20, "max_model_len": 256})
    config = config.replace(
        "cluster", rollout_num_gpus=engines * tensor_parallel, rollout_num_gpus_per_engine=tensor_parallel
    )
    config = config.replace("cluster", start_timeout_secs=100.0)
    return config.replace("engine", engine_transport=transport).replace("sync", **sync)


@pytest.fixture(scope="module")
def start_engines(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Config, Path], Any]]:
    """``start_engines(config, folder)``; the engines end with the module."""
    from vime_core.devices.cpu import CpuBackend
    from vime_core.inference.group import EngineGroup
    from vime_core.inference.launch import EngineLaunch
    from vime_core.plugin.plugins import Plugins

    plugins, groups = Plugins.load(["ascend"], autoload=False, environ={}), []  # for a vLLM before 0.32

    def start(config: Config, folder: Path) -> Any:
        logs = tmp_path_factory.mktemp("logs")
        group = EngineGroup.start(EngineLaunch(config, CpuBackend(), str(folder), plugins, logs))
        groups.append(group)
        return group

    yield start
    for group in groups:
        group.shutdown()
