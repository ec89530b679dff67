"""Both sides of bench_trainer_step.py, each a child process: our Megatron trainer, and plain Hugging Face.

    python benchmarks/trainer_sides.py {vime|huggingface} --model FOLDER --dtype bfloat16 --lengths FILE

Each question is one training step on the same tokens: policy-gradient loss on the responses, backward, clipping, AdamW.
The plain side is what people write: padded micro-batches through ``AutoModelForCausalLM``, log-softmax of all logits.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import answer, questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("vime", "huggingface"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--lengths", type=Path, required=True, help="JSON: [[prompt, response], ...]")
    parser.add_argument("--micro-batch", type=int, default=8, help="samples of a padded micro-batch")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of a packed micro-batch")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    samples = make_samples(args.model, json.loads(args.lengths.read_text()))
    step = vime_step(args, samples) if args.side == "vime" else huggingface_step(args, samples)
    for _ in questions():
        answer(step())


def make_samples(model: str, lengths: list[list[int]]) -> list[tuple[np.ndarray, int]]:
    """Random tokens: [(ids, response length)], the same on both sides."""
    from transformers import AutoConfig

    random, vocabulary = np.random.default_rng(0), AutoConfig.from_pretrained(model).vocab_size
    return [(random.integers(4, vocabulary, prompt + response), response) for prompt, response in lengths]


# ours ------------------------------------------------------------------------------------------------------------
def vime_step(args: argparse.Namespace, samples: list[tuple[np.ndarray, int]]) -> Callable[[], dict[str, float]]:
    from vime_core.config import Config
    from vime_core.devices import CpuBackend
    from vime_core.plugin import Plugins
    from vime_core.training import TrainerWorker

    config = Config().replace("megatron", bf16=args.dtype == "bfloat16", lr=1e-6, weight_decay=0.01)
    config = config.replace("rollout", rollout_batch_size=len(samples) // 8, n_samples_per_prompt=8)
    config = config.replace("train", use_dynamic_batch_size=True, max_tokens_per_gpu=args.max_tokens)
    config = config.replace("cluster", trainer_cpu_threads=torch.get_num_threads())
    worker = TrainerWorker(config, Plugins.load(autoload=False, environ={}), CpuBackend(), 0)
    worker.setup(f"127.0.0.1:{free_port()}", args.model, None, 100)
    batch = step_batch(samples)

    def step() -> dict[str, float]:
        metrics = worker.train(0, batch)
        return {"loss": metrics["train/loss"], "grad_norm": metrics["train/grad_norm"]}

    return step


def step_batch(samples: list[tuple[np.ndarray, int]]) -> Any:
    from vime_core.batch import StepBatch

    responses = [response for _, response in samples]
    total = sum(responses)
    return StepBatch.of(
        tokens=np.concatenate([ids for ids, _ in samples]),
        total_lengths=[len(ids) for ids, _ in samples],
        response_lengths=responses,
        mask=np.ones(total),
        rollout_logp=np.full(total, -1.0),
        version=np.zeros(total),
        reward=[float(i % 2) for i in range(len(samples))],
        group=[i // 8 for i in range(len(samples))],
        rollout=range(len(samples)),
        truncated=[False] * len(samples),
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# theirs ----------------------------------------------------------------------------------------------------------
def huggingface_step(args: argparse.Namespace, samples: list[tuple[np.ndarray, int]]) -> Callable[[], dict[str, float]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    batches = [padded(samples[i : i + args.micro_batch]) for i in range(0, len(samples), args.micro_batch)]
    advantage = torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(samples))])

    def step() -> dict[str, float]:
        total = 0.0
        for number, (ids, attention, response) in enumerate(batches):
            logits = model(ids, attention_mask=attention, use_cache=False).logits[:, :-1]
            logp = logits.float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
            weight = advantage[number * args.micro_batch :][: len(ids), None] * response[:, 1:]
            ratio = torch.exp(logp - logp.detach())
            loss = -(ratio * weight / response.sum(1, keepdim=True)).sum() / len(samples)
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": total, "grad_norm": float(norm)}

    return step


def padded(samples: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, attention mask, response mask), [n, longest] each, padded to the right."""
    longest = max(len(ids) for ids, _ in samples)
    ids, attention, response = (torch.zeros(len(samples), longest, dtype=torch.int64) for _ in range(3))
    for row, (tokens, length) in enumerate(samples):
        ids[row, : len(tokens)] = torch.from_numpy(tokens)
        attention[row, : len(tokens)] = 1
        response[row, len(tokens) - length : len(tokens)] = 1
    return ids, attention, response


if __name__ == "__main__":
    main()
