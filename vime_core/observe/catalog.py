"""Every metric that vime logs. A name that is not here is not logged; ``docs/metrics.md`` is written from here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vime_core.observe.names.critic import CRITIC
from vime_core.observe.names.metric import Metric
from vime_core.observe.names.perf import EVAL, PERF, SYNC
from vime_core.observe.names.rollout import ROLLOUT
from vime_core.observe.names.terms import CORRECTIONS, TERMS
from vime_core.observe.names.train import TRAIN

#: heading of the documentation -> metrics, in the order of documentation
CATALOG: Sequence[tuple[str, Sequence[Metric]]] = (
    ("Samples", ROLLOUT),
    ("Trainer", TRAIN),
    ("Terms around the algorithm", TERMS),
    ("Trainer and sampler", CORRECTIONS),
    ("Critic", CRITIC),
    ("Time", PERF),
    ("Weight sync", SYNC),
    ("Evaluation", EVAL),
)

_PLACEHOLDER = re.compile(r"<[^>]*>")


def metrics() -> list[Metric]:
    """All of them."""
    return [metric for _, group in CATALOG for metric in group]


def find(name: str) -> Metric | None:
    """The metric that ``name`` is an instance of; of several patterns, the one with the most literal characters."""
    exact = [m for m in metrics() if m.name == name and not m.is_pattern]
    fits = exact or [m for m in metrics() if m.is_pattern and _expression(m).fullmatch(name)]
    return max(fits, key=lambda m: len(_PLACEHOLDER.sub("", m.name)), default=None)


def known(name: str) -> bool:
    """Whether the catalogue has ``name``, literally or as an instance of a pattern."""
    return find(name) is not None


def unknown(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are not in the catalogue, sorted."""
    return sorted(name for name in set(names) if not known(name))


def axis_of(name: str) -> str:
    """The step counter that a metric is plotted against, from its prefix; other prefixes count rollout steps."""
    room = name.split("/", 1)[0]
    return f"{room}/step" if room in ("train", "eval") else "rollout/step"


def _expression(metric: Metric) -> re.Pattern[str]:
    literals = _PLACEHOLDER.split(metric.name)
    return re.compile("[^/]+".join(re.escape(part) for part in literals))
