"""An algorithm's facts as text: what ``vime algorithms info`` prints and ``docs/algorithms.md`` holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vime_core.api import Algorithm

#: what has to be there for a need, in words
NEEDS = {
    "old_logp": "log-probs of the policy before the step",
    "rollout_logp": "the sampler's log-probs",
    "ref_logp": "a reference model (--ref-load)",
    "teacher_logp": "a teacher (--opd-type)",
    "values": "a critic",
    "token_reward": "a reward at each token",
    "reward": "a reward",
    "entropy": "the policy's entropy",
}


@dataclass(frozen=True)
class Described:
    """One algorithm in words, a list of (title, text)."""

    name: str
    plugin: str
    summary: str
    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, plugin: str, summary: str, algorithm: type[Algorithm]) -> Described:
        """From the class; an algorithm without info shows what its declarations say."""
        return cls(
            name, plugin, summary, tuple(_rows(algorithm)), tuple(algorithm.info.notes if algorithm.info else ())
        )


def _rows(algorithm: type[Algorithm]) -> Iterator[tuple[str, str]]:
    info = algorithm.info
    if info is not None:
        yield "name", info.title
        yield "source", info.source
        yield "advantage", info.advantage
        yield "loss of a token", info.loss
    elif algorithm.__doc__:
        yield "about", inspect.cleandoc(algorithm.__doc__).splitlines()[0]
    yield "needs", ", ".join(NEEDS.get(need, need) for need in sorted(algorithm.needs)) or "nothing"
    yield "samples a prompt", "2 or more: they are compared" if algorithm.group_based else "any number"
    yield "aggregation", f"{algorithm.aggregate} (--aggregation for another)"
    yield "options", ", ".join(f"{key} = {_value(value)}" for key, value in algorithm.defaults.items()) or "none"


def _value(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
