"""Compare Megatron models with Hugging Face in real processes over gloo, and print what was measured as JSON.

    python tests/training/parity_run.py --world 2 --tp 2 --sp FOLDER [FOLDER ...]

Rank 0 prints one line: {model name: {measure: largest absolute difference, ...}, ...}. Measures:
    logits        logits of one whole sample, at all of its tokens
    logp, entropy packed samples of odd lengths, temperature 1, chunks of 5 rows
    logp_cool     the same at temperature 0.7, without entropy
    grad          gradient of sum(c * logp + d * entropy) over two micro-batches a data-parallel rank, every weight
                  under its Hugging Face name, relative to the largest entry of that weight's gradient
    export, saved exported tensors, and a folder written by save_hf, against the original; names_differ is 1.0 if so
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from vime_core.config.sections import Config
from vime_core.devices.cpu import CpuBackend
from vime_core.runtime.ports import free_port

LENGTHS = ((5, 3), (11, 7), (16, 15), (23, 1), (9, 0), (34, 20))


def samples(seed: int) -> list[tuple[np.ndarray, int]]:
    random = np.random.default_rng(seed)
    count = 2 + seed % 5  # so that micro-batches differ in length
    return [(random.integers(3, 90, size=length), response) for length, response in LENGTHS[:count]]


def main() -> None:
    options = _options()
    port = free_port("127.0.0.1")
    torch.multiprocessing.spawn(_rank, args=(options, port), nprocs=options.world)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    for name in ("world", "tp", "pp", "cp", "ep", "vp"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--first", type=int, default=None, help="layers of the first pipeline stage")
    parser.add_argument("--etp", type=int, default=None)
    parser.add_argument("--sp", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--forward-only", action="store_true")
    return parser.parse_args()


def _config(options: argparse.Namespace) -> Config:
    extra = {"virtual_pipeline_model_parallel_size": options.vp} if options.vp > 1 else {}
    extra |= {"num_layers_in_first_pipeline_stage": options.first} if options.first else {}
    config = Config(megatron_extra=extra)
    config = config.replace("cluster", actor_num_gpus_per_node=options.world, distributed_timeout_minutes=2.0)
    return config.replace(
        "megatron",
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        context_parallel_size=options.cp,
        expert_model_parallel_size=options.ep,
        expert_tensor_parallel_size=options.etp,
        sequence_parallel=options.sp,
        bf16=options.bf16,
    )


def _rank(rank: int, options: argparse.Namespace, port: int) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    from vime_core.training.parallel import destroy_parallel, init_parallel

    config, device = _config(options), CpuBackend()
    init_parallel(config, device, rank, options.world, f"127.0.0.1:{port}")
    found = {Path(folder).name: Parity(config, device, folder, options).measure() for folder in options.folders}
    destroy_parallel()
    if rank == 0:
        print(json.dumps(found))


class Parity:
    """One model against its Hugging Face original."""

    def __init__(self, config: Config, device: CpuBackend, folder: str, options: argparse.Namespace) -> None:
        from transformers import AutoModelForCausalLM

        from vime_core.training.model import MegatronModel
        from vime_core.training.parallel import layout

        self.layout, self.folder, self.options = layout(), folder, options
        self.model = MegatronModel.build(config, device, folder, trainable=not options.forward_only)
        self.model.load_hf()
        kind = torch.bfloat16 if options.bf16 else torch.float32
        self.hf = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)

    def measure(self) -> dict[str, float]:
        found = self._export()
        found["logits"] = self._logits()
        found |= self._logprobs()
        if not self.options.forward_only:
            found["grad"] = self._gradients()
        # The largest over all ranks; ranks without a measure contribute zero.
        values = torch.tensor(list(found.values()), dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return dict(zip(found, values.tolist(), strict=True))

    def _pack(self, chosen: list[tuple[np.ndarray, int]]) -> Any:
        from vime_core.training.packed import pack

        at = self.layout
        return pack(
            [ids for ids, _ in chosen],
            [response for _, response in chosen],
            cp_rank=at.cp_rank,
            cp_size=at.cp_size,
            pad_multiple=at.pad_multiple,
        )

    def _run(self, batches: list[Any], loss: Any, forward_only: bool) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        from vime_core.training.forward_backward import forward_step

        def step(iterator: Iterator[Any], chunk: Any) -> tuple[torch.Tensor, Any]:
            packed = next(iterator)
            return forward_step(chunk, packed), lambda output: loss(chunk, output, packed)

        chunks = self.model.chunks
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=[iter(batches) for _ in chunks] if len(chunks) > 1 else iter(batches),
            model=chunks,
            num_microbatches=len(batches),
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _logits(self) -> float:
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
        from megatron.core.utils import unwrap_model

        from vime_core.training.logprobs import _predicting_rows

        ids, _ = samples(4)[-1]
        worst = [0.0]

        def loss(chunk: Any, output: torch.Tensor, packed: Any) -> Any:
            model = unwrap_model(chunk)
            tied = model.share_embeddings_and_output_weights
            weight = model.shared_embedding_or_output_weight() if tied else model.output_layer.weight
            rows = _predicting_rows(output, packed, model.output_layer)
            logits = gather_from_tensor_model_parallel_region(rows.to(weight.dtype) @ weight.T)
            reference = self.hf(torch.from_numpy(ids)[None]).logits[0, packed.response_index]
            worst[0] = _gap(logits[:, : self.model.vocab_size], reference)
            return output.sum() * 0, torch.tensor(1), {}

        with torch.no_grad():
            self._run([self._pack([(ids, len(ids) - 1)])] * self.layout.pp_size, loss, forward_only=True)
        return worst[0]

    def _logprobs(self) -> dict[str, float]:
        from vime_core.training.logprobs import ChunkedSoftmax, response_logprobs

        found = {"logp": 0.0, "entropy": 0.0, "logp_cool": 0.0}
        chosen = samples(4)

        def loss(chunk: Any, output: torch.Tensor, packed: Any) -> Any:
            plain = response_logprobs(chunk, output, packed, ChunkedSoftmax(1.0, 5, True))
            cool = response_logprobs(chunk, output, packed, ChunkedSoftmax(0.7, -1))
            logp, entropy = self._reference(chosen, 1.0)
            found["logp"] = _gap(self._whole(packed, plain.logp), logp)
            found["entropy"] = _gap(self._whole(packed, plain.entropy), entropy)
            found["logp_cool"] = _gap(self._whole(packed, cool.logp), self._reference(chosen, 0.7)[0])
            return output.sum() * 0, torch.tensor(1), {}

        with torch.no_grad():
            self._run([self._pack(chosen)] * self.layout.pp_size, loss, forward_only=True)
        return found

    def _whole(self, packed: Any, values: torch.Tensor) -> torch.Tensor:
        """[l] on each context-parallel rank -> [r]."""
        from megatron.core import parallel_state

        full = packed.scatter(values.detach())
        dist.all_reduce(full, group=parallel_state.get_context_parallel_group())
        return full

    def _reference(self, chosen: list[tuple[np.ndarray, int]], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        logps, entropies = [], []
        for ids, response in chosen:
            tokens = torch.from_numpy(ids)
            logits = self.hf(tokens[None]).logits[0].float() / temperature
            all_logp = logits.log_softmax(-1)[len(ids) - response - 1 : -1]
            logps.append(all_logp.gather(1, tokens[len(ids) - response :, None])[:, 0])
            entropies.append(-(all_logp.exp() * all_logp).sum(-1))
        return torch.cat(logps), torch.cat(entropies)

    def _gradients(self) -> float:
        from vime_core.training.logprobs import ChunkedSoftmax, response_logprobs

        at = self.layout
        batches = [samples(100 + number) for number in range(2 * at.dp_size)]
        coefficients = [_coefficients(number, batch) for number, batch in enumerate(batches)]
        mine = range(at.dp_rank, len(batches), at.dp_size)
        todo = iter([coefficients[number] for number in mine])

        def loss(chunk: Any, output: torch.Tensor, packed: Any) -> Any:
            out = response_logprobs(chunk, output, packed, ChunkedSoftmax(0.9, 7, True))
            c, d = (packed.local(one) for one in next(todo))
            return (c * out.logp + d * out.entropy).sum(), torch.tensor(packed.response_tokens), {}

        for chunk in self.model.chunks:
            chunk.zero_grad_buffer()
        self._run([self._pack(batches[number]) for number in mine], loss, forward_only=False)
        for batch, (c, d) in zip(batches, coefficients, strict=True):
            logp, entropy = self._reference(batch, 0.9)
            (c * logp + d * entropy).sum().backward()
        return self._compare_gradients()

    def _compare_gradients(self) -> float:
        """Export the gradients as if they were the weights."""
        for module in self.model.modules:
            for parameter in module.parameters():
                parameter.data = parameter.main_grad.to(parameter.dtype).clone()
        reference = {name: one.grad for name, one in _unfused(self.hf)}
        worst = 0.0
        for name, ours in self.model.export_hf():
            if name.endswith("e_score_correction_bias"):
                continue  # a buffer: without gradient
            theirs = reference.pop(name)
            worst = max(worst, _gap(ours, theirs) / max(theirs.abs().max().item(), 1e-3))
        assert not reference, f"no gradient for {sorted(reference)}"
        return worst

    def _export(self) -> dict[str, float]:
        from safetensors.torch import load_file

        original = {}
        for file in sorted(Path(self.folder).glob("*.safetensors")):
            original |= load_file(file)
        exported = {name: tensor.clone() for name, tensor in self.model.export_hf()}
        same = exported.keys() == original.keys()
        gap = max(_gap(tensor, original[name].to(tensor.dtype)) for name, tensor in exported.items())
        return {"export": gap, "names_differ": float(not same), "saved": self._save()}

    def _save(self) -> float:
        """Write the model as a Hugging Face folder and read it with transformers."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        target = Path(self.folder).with_name(Path(self.folder).name + "-saved")
        self.model.save_hf(str(target))
        again = AutoModelForCausalLM.from_pretrained(target, dtype=self.hf.dtype)
        assert len(AutoTokenizer.from_pretrained(target)) == len(AutoTokenizer.from_pretrained(self.folder))
        pairs = zip(again.parameters(), self.hf.parameters(), strict=True)
        return max(_gap(ours, theirs) for ours, theirs in pairs)


def _coefficients(number: int, batch: list[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    count = sum(response for _, response in batch)
    return torch.randn(count, generator=generator), torch.randn(count, generator=generator)


def _unfused(hf: Any) -> Iterator[tuple[str, Any]]:
    """Parameters with gradients under checkpoint names; experts, which transformers keeps stacked, one by one."""

    class Leaf:
        def __init__(self, grad: torch.Tensor) -> None:
            self.grad = grad

    mixtral = hf.config.model_type == "mixtral"
    gate_up, down = (("w1", "w3"), "w2") if mixtral else (("gate_proj", "up_proj"), "down_proj")
    for name, parameter in hf.named_parameters():
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if name.endswith("experts.gate_up_proj"):
            for number, grad in enumerate(parameter.grad):
                for part, half in zip(gate_up, grad.chunk(2), strict=True):
                    yield name.replace("gate_up_proj", f"{number}.{part}.weight"), Leaf(half)
        elif name.endswith("experts.down_proj"):
            for number, grad in enumerate(parameter.grad):
                yield name.replace("down_proj", f"{number}.{down}.weight"), Leaf(grad)
        else:
            yield name, parameter


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is not {tuple(theirs.shape)}"
    return (ours.detach().float() - theirs.detach().float()).abs().max().item() if ours.numel() else 0.0


if __name__ == "__main__":
    main()
