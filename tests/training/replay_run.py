"""Replay experts in real processes over gloo, hold the result against Hugging Face with the same experts forced, and
print what was measured as JSON.

    python tests/training/replay_run.py --world 2 --tp 2 --sp FOLDER

Rank 0 prints one line. Gaps are largest absolute differences over all ranks:
    own             log-probs with Hugging Face's own choice replayed, against those of a free choice
    moved           log-probs with random experts, against those of a free choice
    forced          log-probs with random experts, against Hugging Face's
    forced_train    the same, as the training pass sees them
    grad            gradients with random experts, against Hugging Face's (relative, every weight)
    gate            largest gradient of a router's weight
    own_diff, forced_diff   the metric, in a training pass with either choice
    after           a free pass after all of these, and after one that ended in an error
    recorded        a training pass that replays the pass before it, against that pass
    kept            the same after the routers' weights have changed, against Hugging Face's with the experts of before
    kept_diff       its metric
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.training.parity_run import _gap, _unfused
from vime_core.api.errors import TrainerError
from vime_core.api.streams import FREE_CHOICE, ROUTING
from vime_core.batch.step_batch import StepBatch
from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.runtime.ports import free_port

LENGTHS = ((5, 3), (11, 7), (16, 15), (23, 1), (9, 4), (34, 20), (7, 2))
MICRO = ([0, 1, 2], [3, 4], [5, 6])
TOPK = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    for name in ("world", "tp", "pp", "cp", "ep"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--etp", type=int, default=None)
    parser.add_argument("--sp", action="store_true")
    parser.add_argument("--recompute", choices=["full", "selective"], default=None)
    options = parser.parse_args()
    port = free_port("127.0.0.1")
    torch.multiprocessing.spawn(_rank, args=(options, port), nprocs=options.world)


def _rank(rank: int, options: argparse.Namespace, port: int) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    from vime_core.training.parallel import destroy_parallel, init_parallel

    config, device = _config(options), CpuBackend()
    init_parallel(config, device, rank, options.world, f"127.0.0.1:{port}")
    found = Trial(config, device, options.folder).measure()
    destroy_parallel()
    if rank == 0:
        print(json.dumps(found))


def _config(options: argparse.Namespace) -> Config:
    extra = {"recompute_modules": ["moe"]} if options.recompute == "selective" else {}
    config = Config(megatron_extra=extra).replace("cluster", actor_num_gpus_per_node=options.world)
    return config.replace(
        "megatron",
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        context_parallel_size=options.cp,
        expert_model_parallel_size=options.ep,
        expert_tensor_parallel_size=options.etp,
        sequence_parallel=options.sp,
        recompute_granularity=options.recompute,
    )


def _batch() -> StepBatch:
    total = np.array([n for n, _ in LENGTHS])
    response = np.array([r for _, r in LENGTHS])
    size = int(response.sum())
    return StepBatch.of(
        tokens=np.random.default_rng(5).integers(3, 90, total.sum()),
        total_lengths=total,
        response_lengths=response,
        mask=np.ones(size),
        rollout_logp=np.full(size, np.nan),
        version=np.zeros(size),
        reward=np.zeros(len(total)),
        group=np.zeros(len(total)),
        rollout=np.arange(len(total)),
        truncated=np.zeros(len(total)),
    )


def _with(batch: StepBatch, rows: np.ndarray) -> StepBatch:
    """The batch with these experts; a sample's last token is routed by nobody."""
    import dataclasses

    rows = rows.astype(np.int16)
    rows[batch.token_starts[1:] - 1] = FREE_CHOICE
    return dataclasses.replace(batch, extra={ROUTING.name: ("token", rows)})


class Original:
    """The Hugging Face model, with a choice of experts forced on it or its own."""

    def __init__(self, folder: str, batch: StepBatch) -> None:
        from transformers import AutoModelForCausalLM

        self.batch = batch
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.layers = [layer.mlp.gate for layer in self.model.model.layers]
        self._forced: np.ndarray | None = None
        self._seen: list[torch.Tensor] = []
        for number, gate in enumerate(self.layers):
            gate.register_forward_hook(lambda gate, _, output, number=number: self._replace(number, output))

    def _replace(self, number: int, output: Any) -> Any:
        logits, scores, own = output
        self._seen.append(own)
        if self._forced is None:
            return output
        rows = torch.from_numpy(self._forced[:, number].astype(np.int64))
        chosen = torch.where(rows < 0, own, rows)
        scores = logits.softmax(-1).gather(1, chosen)
        return logits, scores / scores.sum(-1, keepdim=True), chosen

    def run(self, rows: np.ndarray | None = None) -> tuple[torch.Tensor, np.ndarray]:
        """([R] log-probs, [T, layers, topk] its own choice on the way)."""
        logps, choices, starts = [], [], self.batch.token_starts
        for i, response in enumerate(self.batch.response_lengths):
            part = slice(starts[i], starts[i + 1])
            ids = torch.from_numpy(np.array(self.batch.tokens[part]))
            self._forced, self._seen = None if rows is None else rows[part], []
            every = self.model(ids[None]).logits[0].log_softmax(-1)[len(ids) - response - 1 : -1]
            logps.append(every.gather(1, ids[len(ids) - response :, None])[:, 0])
            choices.append(torch.stack(self._seen, 1).numpy())
        return torch.cat(logps), np.concatenate(choices)


class Trial:
    def __init__(self, config: Config, device: CpuBackend, folder: str) -> None:
        from vime_core.training.model import MegatronModel
        from vime_core.training.parallel import layout

        self.config, self.batch, self.layout = config, _batch(), layout()
        self.original = Original(folder, self.batch)
        self.model = MegatronModel.build(config, device, folder, trainable=True)
        self.model.load_hf()
        self.c = torch.randn(self.batch.response_tokens, generator=torch.Generator().manual_seed(3))

    def measure(self) -> dict[str, float]:
        found = self._recorded() | self._sampled()
        values = torch.tensor(list(found.values()), dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return dict(zip(found, values.tolist(), strict=True))

    def _passes(self, **train: bool) -> Any:
        from vime_core.training.forward_backward import LogprobRunner
        from vime_core.training.logprobs import ChunkedSoftmax
        from vime_core.training.replay_routers import make_replay

        replay = make_replay(self.config.replace("train", **train), self.model.modules, torch.device("cpu"))
        return LogprobRunner(self.model, self.layout, torch.device("cpu"), ChunkedSoftmax(1.0, 7), replay=replay)

    @property
    def _mine(self) -> list[list[int]]:
        return [one for number, one in enumerate(MICRO) if number % self.layout.dp_size == self.layout.dp_rank] + (
            [[]] if self.layout.dp_size == 2 and self.layout.dp_rank == 1 else []
        )

    def _forward(self, passes: Any, batch: StepBatch) -> torch.Tensor:
        found = passes.logprobs(batch, self._mine)
        return torch.zeros(batch.response_tokens) if found is None else found

    def _train(self, passes: Any, batch: StepBatch) -> torch.Tensor:
        """Log-probs that a training pass sees; gradients of sum(c * logp) are left in the model."""
        for chunk in self.model.chunks:
            chunk.zero_grad_buffer()

        def finish(micro: Any, out: Any) -> Any:
            total = (self.c[micro.positions] * out.logp).sum() * float(not micro.is_dummy)
            return total, (micro.positions, out.logp.detach(), micro.is_dummy)

        found = passes.gather(batch.response_tokens, passes.train(batch, self._mine, finish))
        return torch.zeros(batch.response_tokens) if found is None else found

    def _gap(self, ours: torch.Tensor, theirs: torch.Tensor) -> float:
        return _gap(ours, theirs) if self.layout.is_last_stage else 0.0

    def _recorded(self) -> dict[str, float]:
        passes = self._passes(use_routing_replay=True)
        with passes.replay.recording():
            before = self._forward(passes, self.batch)
        found = {"recorded": self._gap(self._train(passes, self.batch), before)}
        assert passes.replay.metrics() == {"train/routing_replay_diff": 0.0}
        _, own = self.original.run()
        backup = self._shake()
        expected, _ = self.original.run(own)
        found["kept"] = self._gap(self._train(passes, self.batch), expected)
        found["kept_diff"] = passes.replay.metrics()["train/routing_replay_diff"]
        for weight, values in backup:
            weight.data.copy_(values)
        return found

    def _shake(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Change the routers' weights of both models alike; what they were."""
        from megatron.core.transformer.moe.router import TopKRouter

        noise = [
            torch.randn(gate.weight.shape, generator=torch.Generator().manual_seed(1)) for gate in self.original.layers
        ]
        weights = [(number, gate.weight) for number, gate in enumerate(self.original.layers)]
        for module in self.model.modules:
            weights += [(r.layer_number - 1, r.weight) for r in module.modules() if isinstance(r, TopKRouter)]
        backup = [(weight, weight.data.clone()) for _, weight in weights]
        for number, weight in weights:
            weight.data += 0.02 * noise[number]
        return backup

    def _sampled(self) -> dict[str, float]:
        passes, (free_hf, own) = self._passes(use_rollout_routing_replay=True), self.original.run()
        with passes.replay.off():
            free = self._forward(passes, self.batch)
        assert self._gap(free, free_hf) < 2e-6
        chosen, forced = _with(self.batch, own), _with(self.batch, _random(own.shape))
        found = {"own": self._gap(self._forward(passes, chosen), free)}
        self._train(passes, chosen)
        found["own_diff"] = passes.replay.metrics()["train/routing_replay_diff"]
        logp = self._forward(passes, forced)
        expected, _ = self.original.run(forced.extra[ROUTING.name][1])
        found |= {"moved": self._gap(logp, free), "forced": self._gap(logp, expected)}
        found["forced_train"] = self._gap(self._train(passes, forced), expected)
        found["forced_diff"] = passes.replay.metrics()["train/routing_replay_diff"]
        found["after"] = self._after(passes, free)
        (self.c * expected).sum().backward()
        return found | self._gradients()

    def _after(self, passes: Any, free: torch.Tensor) -> float:
        """What cannot be replayed is refused on all ranks, by the check and by the pass, and leaves nothing behind."""
        rows = np.array(_random((len(self.batch.tokens), len(self.original.layers), TOPK)))
        rows[20, 1] = 3
        with pytest.raises(TrainerError, match=r"rollout 2, layer 1: \[3, 3\] are not different experts of 8"):
            passes.replay.check(_with(self.batch, rows))
        rows[20, 1, 0] = 8
        with pytest.raises(TrainerError, match=r"layer 1: \[8, 3\]"):
            passes.replay.check(_with(self.batch, rows))
        with pytest.raises(TrainerError, match=r"layer 1 and top-k 2"):
            passes.replay.check(_with(self.batch, rows[:, :1]))
        for refused in (passes.replay.check, lambda batch: self._forward(passes, batch)):
            with pytest.raises(TrainerError, match="the step batch has no column 'routing'"):
                refused(self.batch)
        with passes.replay.off():
            return self._gap(self._forward(passes, self.batch), free)

    def _gradients(self) -> dict[str, float]:
        for module in self.model.modules:
            for parameter in module.parameters():
                parameter.data = parameter.main_grad.to(parameter.dtype).clone()
        reference = {name: one.grad for name, one in _unfused(self.original.model)}
        found = {"grad": 0.0, "gate": 0.0}
        for name, ours in self.model.export_hf():
            theirs = reference[name]
            found["grad"] = max(found["grad"], _gap(ours, theirs) / max(theirs.abs().max().item(), 1e-3))
            if name.endswith("mlp.gate.weight"):
                found["gate"] = max(found["gate"], ours.abs().max().item())
        return found


def _random(shape: tuple[int, ...]) -> np.ndarray:
    """Two different of eight experts a row."""
    random = np.random.default_rng(8)
    return random.permuted(np.broadcast_to(np.arange(8), (*shape[:2], 8)), axis=-1)[..., : shape[2]]


if __name__ == "__main__":
    main()
