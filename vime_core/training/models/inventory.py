"""Whether a checkpoint's tensors and the trainer's weights are the same set, counted by name both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from vime_core.api import CheckpointError
from vime_core.training.models.families import FAMILIES

#: ends of the names of tensors that hold nothing which was learnt
_COMPUTED = ("rotary_emb.inv_freq", "masked_bias", "attn.bias")
#: names in one message
_SHOWN = 5


@dataclass(frozen=True)
class Expected:
    """What a model wants of a checkpoint, under Hugging Face names.

    Args:
        names: one for each weight of the model, over all ranks.
        unused: what the checkpoint may hold beside them; ``untrained``: the same, by the start of a name.
        optional: those of ``names`` that it may lack.
    """

    names: tuple[str, ...]
    unused: frozenset[str] = frozenset()
    untrained: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str], hf: Any, unused: frozenset[str], optional: frozenset[str]) -> Expected:
        """Of a model of configuration ``hf``: a tied output layer may be written out beside the embedding."""
        tied = {"lm_head.weight"} if getattr(hf, "tie_word_embeddings", False) else set()
        return cls(tuple(names), unused | tied, FAMILIES[hf.model_type].untrained(hf), optional)

    def check(self, found: Collection[str], where: str) -> None:
        """Raises:
        CheckpointError: a tensor of ``found`` has no place in the model, a weight gets no tensor, or two get one.
        """
        wanted = set(self.names)
        left = {
            name
            for name in set(found) - wanted - self.unused
            if not name.endswith(_COMPUTED) and not (self.untrained and name.startswith(self.untrained))
        }
        faults = (
            ("tensors that the trainer has no place for, so that it would compute another model", left),
            ("no tensors for weights of the trainer", wanted - set(found) - self.optional),
            ("one tensor for several weights of the trainer", {n for n, k in Counter(self.names).items() if k > 1}),
        )
        lines = [f"{what}: {_listed(names)}" for what, names in faults if names]
        if lines:
            raise CheckpointError(f"{where}: {'; '.join(lines)}")


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more
