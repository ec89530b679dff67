"""How the trainer's ranks divide a model: the parallel sizes, worked out once from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.config import Config


@dataclass(frozen=True)
class Layout:
    """Parallel sizes. ``dp`` is without context parallelism; ``edp`` are the replicas of an expert.

    Attributes:
        sequence: sequence parallelism is on: activations between the linears are cut over ``tp``, too.
        sharded: the optimizer state is cut over the replicas (distributed optimizer).
        vocab_multiple: the vocabulary is padded to a multiple of this.
        first, last: layers of the first and last pipeline stage, where the configuration sets them.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence: bool = False
    sharded: bool = False
    vocab_multiple: int = 1
    first: int | None = None
    last: int | None = None

    @classmethod
    def of(cls, config: Config) -> Layout:
        """Of a configuration that keeps the rules of layout."""
        m, extra = config.megatron, config.megatron_extra
        tp = m.tensor_model_parallel_size
        return cls(
            tp=tp,
            pp=m.pipeline_model_parallel_size,
            cp=m.context_parallel_size,
            dp=config.data_parallel_size,
            ep=m.expert_model_parallel_size,
            etp=m.expert_tensor_parallel_size or tp,
            sequence=m.sequence_parallel,
            sharded=m.use_distributed_optimizer,
            vocab_multiple=int(extra.get("make_vocab_size_divisible_by", 1)) * tp,
            first=extra.get("num_layers_in_first_pipeline_stage"),
            last=extra.get("num_layers_in_last_pipeline_stage"),
        )

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def edp(self) -> int:
        return self.world // (self.etp * self.ep * self.pp)

    @property
    def shared(self) -> int:
        """Ranks over which the activations between linears are cut."""
        return self.tp if self.sequence else 1

    def layers(self, total: int, stage: int) -> int:
        """Layers of a pipeline stage."""
        if self.pp == 1:
            return total
        if self.first is not None and stage == 0:
            return self.first
        if self.last is not None and stage == self.pp - 1:
            return self.last
        given = [n for n in (self.first, self.last) if n is not None]
        return (total - sum(given)) // max(self.pp - len(given), 1)

    def vocab(self, size: int) -> int:
        """Rows of the padded vocabulary on one rank."""
        return math.ceil(size / self.vocab_multiple) * self.vocab_multiple // self.tp
