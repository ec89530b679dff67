"""Which other models a run has beside the policy, and which passes it makes, told from the source of its algorithm.

An algorithm's module imports torch, and a plan must not: so its class attributes are read, not executed. An algorithm
that does not spell them as literals is imported after all.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.algorithms import LossConfig
from vime_core.config import Source
from vime_core.plugin import load_target, looks_like_path, split_target

if TYPE_CHECKING:
    from vime_core.config import Config

#: class attributes of an algorithm that a plan reads
READ = ("needs", "recompute_old_logprobs")


@dataclass(frozen=True)
class Needs:
    """reference, teacher: weight sets that take turns with the policy; critic: a model with its own optimizer;
    old_logp: the policy's own log-probs are computed in a pass of their own; entropy: the loss has an entropy term."""

    reference: bool = False
    teacher: bool = False
    critic: bool = False
    old_logp: bool = False
    entropy: bool = False

    @property
    def sets(self) -> int:
        """Copies of the policy's weights: one a set, and one where the policy waits."""
        count = int(self.reference) + int(self.teacher)
        return count + 1 if count else 0

    @property
    def forward_passes(self) -> int:
        """Passes over the whole step before training."""
        return int(self.reference) + int(self.teacher) + int(self.critic) + int(self.old_logp)


def needs_of(config: Config, plugins: Any) -> Needs:
    """Of a stage. Raises PluginError for an algorithm that is not there."""
    supervised = config.train.loss_type == "sft_loss"
    name = "sft" if supervised else config.algorithm.advantage_estimator
    facts = facts_of(name if looks_like_path(name) else plugins.algorithms.get(name).target_text)
    terms = LossConfig.of(config)
    columns = frozenset(facts["needs"]) | terms.needs
    steps = config.samples_per_step // max(config.global_batch, 1)
    early = facts["recompute_old_logprobs"] or terms.recompute_old_logprobs
    return Needs(
        reference="ref_logp" in columns or bool(config.algorithm.kl_coef and not supervised),
        teacher="teacher_logp" in columns and config.algorithm.opd_type == "megatron",
        critic="values" in columns,
        old_logp="old_logp" in columns and not terms.use_rollout_logprobs and (steps > 1 or early),
        entropy=terms.entropy_coef != 0.0,
    )


def facts_of(target: str) -> dict[str, Any]:
    """The attributes :data:`READ` of an algorithm's class, by the registry's target text."""
    place, name = split_target(target)
    found: dict[str, Any] = {}
    for source in _source(place):
        for key, node in _assigned(source, name):
            if key in READ:
                found.setdefault(key, _literal(node))
    if any(found.get(key) is None for key in READ):
        kind = load_target(target)
        return {key: getattr(kind, key) for key in READ}
    return found


def _assigned(source: Source, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Class attributes, the class's own before those of its bases."""
    where, node = source.find(name, depth=6)
    if not isinstance(node, ast.ClassDef):
        return
    for item in node.body:
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        value = getattr(item, "value", None)
        if isinstance(targets[0], ast.Name) and value is not None:
            yield targets[0].id, value
    for base in node.bases:
        if isinstance(base, ast.Name):
            yield from _assigned(where, base.id)


def _source(place: str) -> Iterator[Source]:
    """The file of a module, below the folder of its top-level package; none where it is not found."""
    spec = None if place.endswith(".py") else importlib.util.find_spec(place)
    origin = place if place.endswith(".py") else getattr(spec, "origin", None)
    if origin is None:
        return
    path = Path(origin)
    levels = 0 if place.endswith(".py") else place.count(".")
    yield Source(path.parents[max(levels - 1, 0)], path)


def _literal(node: ast.expr) -> Any:
    """The value of a literal, or of ``frozenset({...})``; None for anything else."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "frozenset":
        return _literal(node.args[0]) if node.args else frozenset()
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
