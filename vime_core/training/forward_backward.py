"""Passes over micro-batches through Megatron's own schedule: with gradient, or only for log-probs.

A pass takes lists of sample indices (one list a micro-batch) of a step batch and gives back numbers on the batch's
response axis. Pipeline stages before the last run along and give back nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from vime_core.algorithms import add_pairs, from_vector, to_vector
from vime_core.algorithms import finish as finish_pairs
from vime_core.training.logprobs import response_logprobs
from vime_core.training.packed import MicroBatch, pack_micro_batch
from vime_core.training.replay import Replay

if TYPE_CHECKING:
    from vime_core.algorithms import Pairs
    from vime_core.batch import StepBatch
    from vime_core.training.logprobs import ChunkedSoftmax, ResponseLogprobs
    from vime_core.training.model import MegatronModel
    from vime_core.training.packed import PackedBatch
    from vime_core.training.parallel import ParallelLayout


#: what the last stage makes of a micro-batch's final hidden states: (chunk, hidden states, micro-batch) -> what its
#: Finish gets
Read = Callable[[Any, torch.Tensor, MicroBatch], Any]
#: what the last stage does with it: (loss, anything to collect)
Finish = Callable[[MicroBatch, Any], tuple[torch.Tensor, Any]]


def forward_step(model_chunk: Any, packed: PackedBatch) -> torch.Tensor:
    """Run one chunk. Returns what the pipeline schedule passes on: hidden states for the next stage, or, on the last
    stage, the final hidden states [1, t (divided by TP under sequence parallelism), h]."""
    output: torch.Tensor = model_chunk(packed.input_ids, packed.position_ids, None, packed_seq_params=packed.params)
    return output


@dataclass(frozen=True)
class ForwardBackward:
    """Takes micro-batches through one model, whatever its output layer is. ``replay`` may choose its experts."""

    model: MegatronModel
    layout: ParallelLayout
    device: torch.device
    replay: Replay = field(default_factory=Replay, kw_only=True)

    def through(
        self, batch: StepBatch, micro_batches: Sequence[Sequence[int]], read: Read, finish: Finish, *, gradient: bool
    ) -> list[Any]:
        """What ``finish`` collected, a value a micro-batch, on the last pipeline stage; [] elsewhere."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        def step(micros: Iterator[MicroBatch], chunk: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            micro = next(micros)
            with self.replay.within(micro):
                output = forward_step(chunk, micro.packed)

            def loss(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
                total, collected = finish(micro, read(chunk, hidden, micro))
                return total, torch.ones((), dtype=torch.int, device=total.device), collected

            return output, loss

        def micros() -> Iterator[MicroBatch]:
            return (pack_micro_batch(batch, samples, self.layout, self.device) for samples in micro_batches)

        chunks = self.model.chunks
        longest = int(batch.total_lengths.max())
        with torch.set_grad_enabled(gradient), self.replay.over(batch, gradient=gradient):
            return get_forward_backward_func()(
                forward_step_func=step,
                # each chunk of virtual stages goes through all micro-batches
                data_iterator=micros() if len(chunks) == 1 else [micros() for _ in chunks],
                model=chunks,
                num_microbatches=len(micro_batches),
                seq_length=longest,
                micro_batch_size=1,
                forward_only=not gradient,
            )

    def gather(self, tokens: int, parts: Sequence[tuple[torch.Tensor, torch.Tensor, bool]]) -> torch.Tensor | None:
        """Values that ranks hold at their own positions, on the whole response axis [tokens], on the CPU."""
        if not self.layout.is_last_stage:
            return None
        from megatron.core import parallel_state

        full = torch.zeros(tokens, dtype=torch.float32, device=self.device)
        for positions, values, is_dummy in parts:
            if not is_dummy:
                full[positions.to(self.device)] = values.float()
        # Every position is filled by exactly one rank, so the sum is a gather, to the bit.
        torch.distributed.all_reduce(full, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return full.cpu()

    def total(self, parts: Sequence[Pairs]) -> dict[str, float]:
        """Metrics over all micro-batches, data and context ranks: added up, divided once; {} before the last stage."""
        if not self.layout.is_last_stage:
            return {}
        from megatron.core import parallel_state

        pairs = add_pairs(parts)
        vector = to_vector(pairs).to(self.device)
        torch.distributed.all_reduce(vector, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        return finish_pairs(from_vector(vector.cpu(), pairs))


@dataclass(frozen=True)
class LogprobRunner(ForwardBackward):
    """Passes for log-probs of one model, as ``softmax`` says."""

    softmax: ChunkedSoftmax

    def train(
        self,
        batch: StepBatch,
        micro_batches: Sequence[Sequence[int]],
        finish: Finish,
        *,
        entropy: bool = False,
        topk_ids: torch.Tensor | None = None,
    ) -> list[Any]:
        """As :meth:`through`, with gradient; ``finish`` gets the :class:`ResponseLogprobs` of its micro-batch, with
        those of the tokens ``topk_ids`` [R, k] int64 too."""
        read = self._read(replace(self.softmax, with_entropy=entropy), topk_ids)
        return self.through(batch, micro_batches, read, finish, gradient=True)

    def _read(self, softmax: ChunkedSoftmax, topk_ids: torch.Tensor | None = None) -> Read:
        def read(chunk: Any, hidden: torch.Tensor, micro: MicroBatch) -> ResponseLogprobs:
            ids = None if topk_ids is None else topk_ids[micro.positions].to(self.device)
            return response_logprobs(chunk, hidden, micro.packed, softmax, ids)

        return read

    def logprobs(
        self, batch: StepBatch, micro_batches: Sequence[Sequence[int]], temperature: float | None = None
    ) -> torch.Tensor | None:
        """[R] log-probs of the whole step, gathered over data and context ranks; None before the last stage."""

        def finish(micro: MicroBatch, logprobs: ResponseLogprobs) -> tuple[torch.Tensor, Any]:
            return logprobs.logp.sum() * 0, (micro.positions, logprobs.logp.detach(), micro.is_dummy)

        softmax = self.softmax if temperature is None else replace(self.softmax, temperature=temperature)
        parts = self.through(batch, micro_batches, self._read(softmax), finish, gradient=False)
        return self.gather(batch.response_tokens, parts)
